-- The shop, which the demo keeps equal to its copy: plain SQLite, as an application would have it.

-- tables --
CREATE TABLE customers (
    id         INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    email      TEXT NOT NULL UNIQUE,
    balance    DECIMAL(12, 2) NOT NULL DEFAULT 0,
    born       DATE,
    photo      BLOB,
    note       TEXT,
    created_at TIMESTAMP NOT NULL
);

CREATE TABLE products (
    sku    VARCHAR(20) NOT NULL PRIMARY KEY,
    name   TEXT NOT NULL,
    price  DECIMAL(10, 2) NOT NULL,
    weight REAL,
    stock  INTEGER NOT NULL,
    active BOOLEAN NOT NULL
);

CREATE TABLE orders (
    id          INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    placed_at   TIMESTAMP NOT NULL,
    status      TEXT NOT NULL,
    total       DECIMAL(12, 2) NOT NULL
);

CREATE TABLE order_lines (
    order_id INTEGER NOT NULL REFERENCES orders (id) ON DELETE CASCADE,
    line_no  INTEGER NOT NULL,
    sku      VARCHAR(20) NOT NULL REFERENCES products (sku),
    quantity INTEGER NOT NULL,
    price    DECIMAL(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line_no)
);

CREATE INDEX orders_customer ON orders (customer_id);

-- insert_customer --
INSERT INTO customers (name, email, balance, born, photo, note, created_at) VALUES (?, ?, ?, ?, ?, ?, ?);

-- insert_product --
INSERT INTO products (sku, name, price, weight, stock, active) VALUES (?, ?, ?, ?, ?, ?);

-- insert_order --
INSERT INTO orders (customer_id, placed_at, status, total) VALUES (?, ?, ?, ?);

-- insert_line --
INSERT INTO order_lines (order_id, line_no, sku, quantity, price) VALUES (?, ?, ?, ?, ?);

-- sell --
UPDATE products SET stock = stock - ? WHERE sku = ?;

-- charge --
UPDATE customers SET balance = round(balance - ?, 2) WHERE id = ?;

-- ship_order --
UPDATE orders SET status = 'shipped 📦' WHERE id = ?;

-- cancel_order --
DELETE FROM orders WHERE id = ?;

-- rename_product --
UPDATE products SET sku = ? WHERE sku = ? AND NOT EXISTS (SELECT 1 FROM order_lines WHERE sku = products.sku);

-- move_line --
UPDATE order_lines SET line_no = line_no + 100 WHERE order_id = ? AND line_no < 100;

-- replace_product --
INSERT OR REPLACE INTO products (sku, name, price, weight, stock, active) VALUES (?, ?, ?, ?, ?, ?);

-- note_customer --
UPDATE customers SET note = ?, photo = ? WHERE id = ?;
