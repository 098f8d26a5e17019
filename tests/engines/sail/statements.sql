-- Namespaces
CREATE NAMESPACE sail;
CREATE NAMESPACE sail.europe;
SHOW NAMESPACES IN sail;
-- sail.europe | lake | NULL | NULL
USE NAMESPACE sail;

-- Tables
CREATE TABLE orders (
    id BIGINT NOT NULL,
    item STRING,
    price DECIMAL(10, 2),
    placed TIMESTAMP
) USING iceberg PARTITIONED BY (months(placed));
INSERT INTO orders VALUES
    (1, 'ice', 1.50, TIMESTAMP '2026-01-01 08:00:00'),
    (2, 'tusk', 9.99, TIMESTAMP '2026-01-02 09:30:00'),
    (3, 'fin', NULL, TIMESTAMP '2026-02-01 00:00:00');
-- 3
SELECT * FROM orders WHERE placed < TIMESTAMP '2026-02-01 00:00:00' ORDER BY id;
-- 1 | ice | 1.50 | 2026-01-01 08:00:00
-- 2 | tusk | 9.99 | 2026-01-02 09:30:00
SELECT count(*), sum(price) FROM orders;
-- 3 | 11.49
CREATE TABLE sold USING iceberg AS SELECT id, item FROM orders;
-- 3
INSERT OVERWRITE sold SELECT 9L, 'fur';
-- 1
SELECT * FROM sold;
-- 9 | fur
SHOW TABLES;
-- sail | orders | false
-- sail | sold | false
DESCRIBE TABLE sold;
-- id | bigint | NULL
-- item | string | NULL

-- Changing rows
UPDATE orders SET price = price + 1 WHERE id = 1;
DELETE FROM orders WHERE item = 'fin';
MERGE INTO orders t USING (SELECT 2L AS id, 'horn' AS item UNION ALL SELECT 4L, 'fur') u ON t.id = u.id
    WHEN MATCHED THEN UPDATE SET item = u.item
    WHEN NOT MATCHED THEN INSERT (id, item) VALUES (u.id, u.item);
SELECT id, item, price FROM orders ORDER BY id;
-- 1 | ice | 2.50
-- 2 | horn | 9.99
-- 4 | fur | NULL
SELECT count(*) FROM orders VERSION AS OF 1;
-- fails: Snapshot with id 1 not found

-- Views
CREATE VIEW dear AS SELECT id, item FROM orders WHERE price > 5;
SELECT * FROM dear;
-- 2 | horn
DROP VIEW dear;

-- A nested namespace: select it, or use the namespace above it as a catalog
USE NAMESPACE sail.europe;
CREATE TABLE towns (name STRING) USING iceberg;
INSERT INTO towns VALUES ('Tromsø');
-- 1
SELECT * FROM towns;
-- Tromsø
SHOW NAMESPACES IN part;
-- europe | part | NULL | NULL
SELECT * FROM part.europe.towns;
-- Tromsø
SELECT * FROM lake.sail.europe.towns;
-- fails: table reference

-- A dropped table keeps its files; the next one of that name has the same location
USE NAMESPACE sail;
DROP TABLE sold;
CREATE TABLE sold (id BIGINT) USING iceberg;
SELECT * FROM sold;
-- no rows
DROP TABLE sold PURGE;
CREATE TABLE sold (id BIGINT) USING iceberg;
-- fails: 409 Conflict

-- What Sail does not do yet
ALTER TABLE orders ADD COLUMN amount INT;
-- fails: unsupported ALTER TABLE operation
ALTER TABLE orders SET TBLPROPERTIES ('comment' = 'all orders');
-- fails: ALTER TABLE is not yet supported for catalog-managed Iceberg tables
CREATE OR REPLACE TABLE orders USING iceberg AS SELECT 1L AS id;
-- fails: Replace table is not supported yet
