-- The column types requested with `install-triggers --type-map`; the table exists only after such a request.

-- table --
-- TRAVELS_AS: one of the types in docs/reference/oracle-types.md, or usual. It overrides [source.type_map].
CREATE TABLE VENUS_TYPE_MAP (
  NAMESPACE    VARCHAR2({name_bytes})  NOT NULL,
  NAME         VARCHAR2({name_bytes})  NOT NULL,
  COLUMN_NAME  VARCHAR2({name_bytes})  NOT NULL,
  TRAVELS_AS   VARCHAR2(30)            NOT NULL,
  CONSTRAINT VENUS_TYPE_MAP_PK PRIMARY KEY (NAMESPACE, NAME, COLUMN_NAME)
);

-- recorded --
SELECT NAMESPACE, NAME, COLUMN_NAME, TRAVELS_AS FROM VENUS_TYPE_MAP

-- forget --
DELETE FROM VENUS_TYPE_MAP WHERE NAMESPACE = {namespace} AND NAME = {name} AND COLUMN_NAME = {column}

-- record --
INSERT INTO VENUS_TYPE_MAP (NAMESPACE, NAME, COLUMN_NAME, TRAVELS_AS) VALUES ({namespace}, {name}, {column}, {to})
