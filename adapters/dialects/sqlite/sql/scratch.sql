-- Statements of `venus prove` on its scratch file.

-- objects --
SELECT type, name FROM main.sqlite_master WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY type = 'table', type, name

-- catalogue --
SELECT type, name, tbl_name, sql FROM main.sqlite_master
