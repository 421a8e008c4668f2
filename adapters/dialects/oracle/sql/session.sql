-- The settings of an installing session.

-- patience --
-- The seconds for which DDL waits for a table that is being written. Writers queue behind it, so the time is short.
ALTER SESSION SET DDL_LOCK_TIMEOUT = 5

-- guard --
BEGIN
  IF USER <> {user} THEN
    RAISE_APPLICATION_ERROR(-20103, {message});
  END IF;
END;
