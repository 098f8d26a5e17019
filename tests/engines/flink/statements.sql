-- Catalogs
CREATE CATALOG lake WITH (
    'type' = 'iceberg',
    'catalog-type' = 'rest',
    'uri' = 'http://127.0.0.1:2333',
    'token' = 'mnd_...',
    'cache-enabled' = 'false'
);
CREATE CATALOG by_credential WITH (
    'type' = 'iceberg',
    'catalog-type' = 'rest',
    'uri' = 'http://127.0.0.1:2333',
    'credential' = 'admin:mnd_...',
    'oauth2-server-uri' = 'http://127.0.0.1:2333/v1/oauth/tokens'
);
CREATE DATABASE lake.flink;
USE CATALOG lake;
USE flink;

-- A table of rows that are only added
CREATE TABLE orders (
    id BIGINT NOT NULL,
    item STRING,
    price DECIMAL(10, 2),
    placed TIMESTAMP(6)
) PARTITIONED BY (item) WITH ('format-version' = '2');
SHOW TABLES;
-- orders
INSERT INTO orders VALUES
    (1, 'ice', 1.50, TIMESTAMP '2026-01-01 08:00:00'),
    (2, 'tusk', 9.99, TIMESTAMP '2026-01-02 09:30:00');
INSERT INTO orders SELECT 3, 'fin', CAST(NULL AS DECIMAL(10, 2)), TIMESTAMP '2026-02-01 00:00:00';
SET 'execution.runtime-mode' = 'batch';
SELECT * FROM orders ORDER BY id;
-- 1 | ice | 1.50 | 2026-01-01T08:00
-- 2 | tusk | 9.99 | 2026-01-02T09:30
-- 3 | fin | NULL | 2026-02-01T00:00
SELECT COUNT(*) FROM by_credential.flink.orders;
-- 3
SELECT COUNT(*) FROM orders$snapshots;
-- 2
INSERT OVERWRITE orders PARTITION (item = 'ice') SELECT 4, 5.00, TIMESTAMP '2026-03-01 00:00:00';
SELECT id, price FROM orders WHERE item = 'ice';
-- 4 | 5.00

-- Upserts. Each checkpoint of a stream is a commit; a row with a known key replaces the older one.
CREATE TABLE stock (
    item STRING NOT NULL,
    pieces INT,
    PRIMARY KEY (item) NOT ENFORCED
) WITH ('format-version' = '2', 'write.upsert.enabled' = 'true');
SET 'execution.runtime-mode' = 'streaming';
INSERT INTO stock VALUES ('ice', 3), ('tusk', 1), ('fin', 7);
INSERT INTO stock VALUES ('ice', 2), ('horn', 1);
INSERT INTO stock VALUES ('tusk', 0);
SET 'execution.runtime-mode' = 'batch';
SELECT * FROM stock ORDER BY item;
-- fin | 7
-- horn | 1
-- ice | 2
-- tusk | 0
SELECT content, COUNT(*), SUM(record_count) FROM stock$all_delete_files GROUP BY content;
-- 2 | 3 | 6

-- A changelog: the groups of a stream change as its rows come
CREATE TABLE totals (
    item STRING NOT NULL,
    total BIGINT,
    PRIMARY KEY (item) NOT ENFORCED
) WITH ('format-version' = '2', 'write.upsert.enabled' = 'true');
SET 'execution.runtime-mode' = 'streaming';
INSERT INTO totals SELECT item, COUNT(*) FROM (VALUES ('ice'), ('fin'), ('ice')) AS sold (item) GROUP BY item;
SET 'execution.runtime-mode' = 'batch';
SELECT * FROM totals ORDER BY item;
-- fin | 1
-- ice | 2

-- Changing tables
ALTER TABLE orders SET ('commit.retry.num-retries' = '10');
ALTER TABLE orders ADD (amount INT);
ALTER TABLE orders RENAME amount TO pieces;
ALTER TABLE orders DROP (price);
INSERT INTO orders VALUES (5, 'fur', TIMESTAMP '2026-04-01 00:00:00', 2);
SELECT id, pieces FROM orders WHERE id > 3 ORDER BY id;
-- 4 | NULL
-- 5 | 2
ALTER TABLE totals RENAME TO sums;
DROP TABLE sums;
CREATE TABLE later LIKE orders;
CREATE DATABASE lake.spare;
DROP DATABASE lake.spare;

-- A continuous stream copies the rows of one table to another, with each checkpoint
SET 'execution.runtime-mode' = 'streaming';
SET 'execution.checkpointing.interval' = '1s';
INSERT INTO later SELECT * FROM orders /*+ OPTIONS('streaming' = 'true', 'starting-strategy' = 'TABLE_SCAN_THEN_INCREMENTAL', 'monitor-interval' = '1s') */;
INSERT INTO orders VALUES (6, 'claw', TIMESTAMP '2026-05-01 00:00:00', 1);
