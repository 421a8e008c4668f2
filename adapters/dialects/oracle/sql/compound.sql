-- Experimental: one compound trigger instead of three row triggers, for bulk DML. It collects keys and writes them with
-- FORALL, which avoids a context switch for each row. It has not run on any Oracle yet; a PL/SQL grammar parses it.

-- trigger --
CREATE OR REPLACE TRIGGER {trigger}
FOR INSERT OR UPDATE OR DELETE ON {table}
DISABLE
COMPOUND TRIGGER
  TYPE T_OP IS TABLE OF {log}.OP%TYPE INDEX BY PLS_INTEGER;
{types}
  G_OP  T_OP;
{arrays}
  G_N   PLS_INTEGER := 0;
  PROCEDURE FORGET IS
  BEGIN
    G_OP.DELETE;
{deletes}
    G_N := 0;
  END FORGET;
  PROCEDURE FLUSH_LOG IS
  BEGIN
    IF G_N > 0 THEN
      FORALL J IN 1 .. G_N
        INSERT INTO {log} (SEQ, OP, {keys}) VALUES (VENUS_SEQ.NEXTVAL, G_OP(J), {collected});
      FORGET;
    END IF;
  END FLUSH_LOG;
  BEFORE STATEMENT IS
  BEGIN
    FORGET;
  END BEFORE STATEMENT;
  AFTER EACH ROW IS
  BEGIN
    IF INSERTING THEN
      G_N := G_N + 1;
      G_OP(G_N) := 'I';
{new_key}
    ELSIF DELETING THEN
      G_N := G_N + 1;
      G_OP(G_N) := 'D';
{old_key}
    ELSE
      IF {key_changed} THEN
        G_N := G_N + 1;
        G_OP(G_N) := 'D';
{old_key}
      END IF;
      G_N := G_N + 1;
      G_OP(G_N) := 'U';
{new_key}
    END IF;
    IF G_N >= {piece} THEN
      FLUSH_LOG;
    END IF;
  END AFTER EACH ROW;
  AFTER STATEMENT IS
  BEGIN
    FLUSH_LOG;
  END AFTER STATEMENT;
END;
