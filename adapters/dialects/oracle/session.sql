-- What a session of VENUS's says of itself.

-- patience --
-- DDL on a table that is being written to waits for so many seconds. Writers queue behind it, so they are few.
ALTER SESSION SET DDL_LOCK_TIMEOUT = 5

-- guard --
BEGIN
  IF USER <> {user} THEN
    RAISE_APPLICATION_ERROR(-20103, {said});
  END IF;
END;
