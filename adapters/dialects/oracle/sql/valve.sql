-- The size limit of the logs, which the job VENUS_VALVE enforces every minute, also while VENUS is not running.

-- block --
-- Changes the registry before it disables triggers: if it stops in between, the table is only read again without need. An
-- error affects one table for one minute. The trigger that the query looks for is disabled last.
BEGIN
  FOR T IN (SELECT L.VENUS_NAME AS LOG, SUBSTR(L.VENUS_NAME, 9) AS NUM
              FROM VENUS_OWNED L
              JOIN USER_TRIGGERS G ON G.TRIGGER_NAME = 'VENUS_I_' || SUBSTR(L.VENUS_NAME, 9)
             WHERE L.VENUS_KIND = 'TABLE' AND SUBSTR(L.VENUS_NAME, 1, 8) = 'VENUS_L_' AND G.STATUS = 'ENABLED') LOOP
    BEGIN
      EXECUTE IMMEDIATE
        'UPDATE VENUS_CAPTURED_TABLE
            SET REASON = CASE STATE WHEN :1 THEN REASON ELSE :2 END, STATE = CASE STATE WHEN :3 THEN STATE ELSE :4 END
          WHERE TABLE_ID = :5 AND STATE IN (:6, :7, :8) AND ({full})'
        USING 'PAUSED', '{reason}', 'PAUSED', 'RESYNC', T.NUM, 'ACTIVE', 'PAUSED', 'RESYNC';
      IF SQL%ROWCOUNT > 0 THEN
        COMMIT;
        EXECUTE IMMEDIATE 'ALTER TRIGGER VENUS_D_' || T.NUM || ' DISABLE';
        EXECUTE IMMEDIATE 'ALTER TRIGGER VENUS_U_' || T.NUM || ' DISABLE';
        EXECUTE IMMEDIATE 'ALTER TRIGGER VENUS_I_' || T.NUM || ' DISABLE';
      END IF;
    EXCEPTION
      WHEN OTHERS THEN
        ROLLBACK;
    END;
  END LOOP;
END;

-- rows --
(SELECT COUNT(*) FROM ' || T.LOG || ' WHERE ROWNUM <= {rows}) >= {rows}

-- bytes --
(SELECT SUM(BYTES) FROM USER_SEGMENTS WHERE SEGMENT_NAME IN (''' || T.LOG || ''', ''' || T.LOG || '_PK'')) >= {bytes}

-- job --
BEGIN
  DBMS_SCHEDULER.CREATE_JOB(
    JOB_NAME => 'VENUS_VALVE', JOB_TYPE => 'PLSQL_BLOCK', REPEAT_INTERVAL => 'FREQ=MINUTELY', ENABLED => TRUE,
    JOB_ACTION => q'[
{action}
]');
END;

-- drop_job --
BEGIN
  DBMS_SCHEDULER.DROP_JOB(JOB_NAME => 'VENUS_VALVE', FORCE => TRUE);
END;

-- empty_log --
-- Frees the space of a captured log. Its triggers are disabled, so it has no writer once the lock is granted.
DECLARE
  V_ROWS NUMBER(9);
BEGIN
  LOCK TABLE {log} IN EXCLUSIVE MODE NOWAIT;
  SELECT COUNT(*) INTO V_ROWS FROM {log} WHERE ROWNUM <= 1;
  IF V_ROWS = 0 THEN
    EXECUTE IMMEDIATE 'TRUNCATE TABLE {log}';
  END IF;
END;
