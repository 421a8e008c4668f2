-- What VENUS has made in its schema. The record comes before the object, so that whatever is there and not recorded is
-- somebody else's, however it is named.

-- table --
CREATE TABLE VENUS_OWNED (
  VENUS_KIND  VARCHAR2(30)  NOT NULL,
  VENUS_NAME  VARCHAR2(30)  NOT NULL,
  CONSTRAINT VENUS_OWNED_PK PRIMARY KEY (VENUS_KIND, VENUS_NAME)
);

-- record --
-- Not for what is there already: the application has made it meanwhile, and the CREATE that follows fails.
INSERT INTO VENUS_OWNED (VENUS_KIND, VENUS_NAME)
SELECT X.K, X.N FROM ({rows}) X
 WHERE NOT EXISTS (SELECT 1 FROM VENUS_OWNED O WHERE O.VENUS_KIND = X.K AND O.VENUS_NAME = X.N)
   AND NOT EXISTS (SELECT 1 FROM USER_OBJECTS U WHERE U.OBJECT_TYPE = X.K AND U.OBJECT_NAME = X.N);

-- adopt --
-- Of an installation that was made before there was this record.
INSERT INTO VENUS_OWNED (VENUS_KIND, VENUS_NAME)
SELECT X.K, X.N FROM ({rows}) X
 WHERE NOT EXISTS (SELECT 1 FROM VENUS_OWNED O WHERE O.VENUS_KIND = X.K AND O.VENUS_NAME = X.N);

-- row --
SELECT {kind} AS K, {name} AS N FROM DUAL

-- recorded --
SELECT VENUS_KIND, VENUS_NAME FROM {schema}VENUS_OWNED

-- registered --
-- The columns tell VENUS's registry from a table that somebody else has given this name.
SELECT TABLE_ID, FINGERPRINT, FILL_ESTIMATE, SWEEP_FROM FROM {schema}VENUS_CAPTURED_TABLE
