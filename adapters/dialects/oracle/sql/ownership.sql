-- The objects that VENUS created in its schema. VENUS records an object before it creates it, so that an unrecorded object
-- belongs to the application, regardless of its name.

-- table --
CREATE TABLE VENUS_OWNED (
  VENUS_KIND  VARCHAR2(30)  NOT NULL,
  VENUS_NAME  VARCHAR2(30)  NOT NULL,
  CONSTRAINT VENUS_OWNED_PK PRIMARY KEY (VENUS_KIND, VENUS_NAME)
);

-- record --
-- Skips existing objects: the application has created them in the meantime, and the following CREATE fails.
INSERT INTO VENUS_OWNED (VENUS_KIND, VENUS_NAME)
SELECT X.K, X.N FROM ({rows}) X
 WHERE NOT EXISTS (SELECT 1 FROM VENUS_OWNED O WHERE O.VENUS_KIND = X.K AND O.VENUS_NAME = X.N)
   AND NOT EXISTS (SELECT 1 FROM USER_OBJECTS U WHERE U.OBJECT_TYPE = X.K AND U.OBJECT_NAME = X.N);

-- adopt --
-- For an installation that is older than this record.
INSERT INTO VENUS_OWNED (VENUS_KIND, VENUS_NAME)
SELECT X.K, X.N FROM ({rows}) X
 WHERE NOT EXISTS (SELECT 1 FROM VENUS_OWNED O WHERE O.VENUS_KIND = X.K AND O.VENUS_NAME = X.N);

-- row --
SELECT {kind} AS K, {name} AS N FROM DUAL

-- recorded --
SELECT VENUS_KIND, VENUS_NAME FROM {schema}VENUS_OWNED

-- registered --
-- The columns distinguish VENUS's registry from another table of this name.
SELECT TABLE_ID, FINGERPRINT, FILL_ESTIMATE, SWEEP_FROM FROM {schema}VENUS_CAPTURED_TABLE
