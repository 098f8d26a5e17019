-- Schemas. Without a location a schema has a directory of its own in the warehouse.
CREATE SCHEMA lake.trino;
CREATE SCHEMA lake."trino.europe";
CREATE SCHEMA lake.elsewhere WITH (location = 'file:///path/to/the/warehouse/elsewhere');
CREATE SCHEMA lake.trino;
-- fails: Schema 'lake.trino' already exists
SHOW SCHEMAS FROM lake LIKE 'trino%';
-- trino
-- trino.europe
USE lake.trino;

-- Tables
CREATE TABLE orders (
    id bigint NOT NULL,
    item varchar COMMENT 'what was sold',
    price decimal(10, 2),
    placed timestamp(6) with time zone
) WITH (partitioning = ARRAY['month(placed)'], sorted_by = ARRAY['id']);
INSERT INTO orders VALUES
    (1, 'ice', 1.50, TIMESTAMP '2026-01-01 08:00:00 UTC'),
    (2, 'tusk', 9.99, TIMESTAMP '2026-01-02 09:30:00 UTC'),
    (3, 'fin', NULL, TIMESTAMP '2026-02-01 00:00:00.123456 UTC');
-- 3
INSERT INTO orders VALUES (NULL, 'nothing', 0, NULL);
-- fails: NULL value not allowed for NOT NULL column: id
SELECT * FROM orders ORDER BY id;
-- 1 | ice | 1.50 | 2026-01-01 08:00:00+00:00
-- 2 | tusk | 9.99 | 2026-01-02 09:30:00+00:00
-- 3 | fin | NULL | 2026-02-01 00:00:00.123456+00:00
CREATE TABLE orders (id bigint);
-- fails: Table 'lake.trino.orders' already exists
CREATE TABLE january WITH (format = 'ORC') AS SELECT * FROM orders WHERE month(placed) = 1;
-- 2
CREATE TABLE IF NOT EXISTS january AS SELECT * FROM orders;
-- 0
SELECT count(*), sum(price) FROM january;
-- 2 | 11.49
CREATE OR REPLACE TABLE january WITH (format = 'AVRO') AS SELECT id, item FROM orders WHERE month(placed) = 1;
-- 2
SELECT * FROM january ORDER BY id;
-- 1 | ice
-- 2 | tusk
CREATE TABLE "trino.europe".towns (name varchar, visited date);
INSERT INTO "trino.europe".towns VALUES ('Tromsø', DATE '2026-06-01');
-- 1
SELECT * FROM lake."trino.europe".towns;
-- Tromsø | 2026-06-01
CREATE TABLE elsewhere.towns AS TABLE lake."trino.europe".towns;
-- 1
SELECT regexp_replace("$path", '/data/.*|-[0-9a-f]{32}') FROM lake.elsewhere.towns;
-- file:///path/to/the/warehouse/elsewhere/towns
SHOW TABLES FROM lake.trino;
-- january
-- orders

-- Changing rows
SELECT snapshot_id FROM "orders$snapshots" ORDER BY committed_at DESC LIMIT 1;
-- :before
SELECT to_iso8601(max(committed_at)) FROM "orders$snapshots";
-- :then
UPDATE orders SET price = price + 1 WHERE id < 3;
-- 2
DELETE FROM orders WHERE item = 'fin';
-- 1
MERGE INTO orders o
    USING (VALUES (2, 'horn', 5.00), (4, 'fur', 7.25)) AS n (id, item, price) ON o.id = n.id
    WHEN MATCHED THEN UPDATE SET item = n.item, price = n.price
    WHEN NOT MATCHED THEN INSERT (id, item, price) VALUES (n.id, n.item, n.price);
-- 2
SELECT id, item, price FROM orders ORDER BY id;
-- 1 | ice | 2.50
-- 2 | horn | 5.00
-- 4 | fur | 7.25
DELETE FROM orders WHERE placed IS NULL;
-- 1

-- Time travel
SELECT id, item FROM orders FOR VERSION AS OF :before ORDER BY id;
-- 1 | ice
-- 2 | tusk
-- 3 | fin
SELECT count(*) FROM orders FOR TIMESTAMP AS OF from_iso8601_timestamp(':then');
-- 3
SELECT count(*) FROM orders FOR VERSION AS OF BIGINT '1';
-- fails: Iceberg snapshot ID does not exists: 1
ALTER TABLE orders EXECUTE rollback_to_snapshot(:before);
SELECT id FROM orders ORDER BY id;
-- 1
-- 2
-- 3

-- Changing schemas
ALTER TABLE orders ADD COLUMN amount integer;
ALTER TABLE orders ADD COLUMN IF NOT EXISTS amount integer;
ALTER TABLE orders ADD COLUMN address ROW(street varchar, zip integer);
ALTER TABLE orders ADD COLUMN address.city varchar;
ALTER TABLE orders ADD COLUMN tags ARRAY(varchar);
UPDATE orders SET amount = 7, address = ROW('Storgata', 9008, 'Tromsø'), tags = ARRAY['big', 'cold'] WHERE id = 2;
-- 1
ALTER TABLE orders RENAME COLUMN item TO article;
ALTER TABLE orders RENAME COLUMN address.street TO road;
ALTER TABLE orders DROP COLUMN address.zip;
ALTER TABLE orders ALTER COLUMN amount SET DATA TYPE bigint;
ALTER TABLE orders ALTER COLUMN price SET DATA TYPE decimal(12, 2);
ALTER TABLE orders ALTER COLUMN article SET DATA TYPE integer;
-- fails: Failed to set column type
ALTER TABLE orders ALTER COLUMN id DROP NOT NULL;
COMMENT ON COLUMN orders.amount IS 'pieces';
COMMENT ON TABLE orders IS 'all orders';
DESCRIBE orders;
-- id | bigint | |
-- article | varchar | | what was sold
-- price | decimal(12,2) | |
-- placed | timestamp(6) with time zone | |
-- amount | bigint | | pieces
-- address | row(road varchar, city varchar) | |
-- tags | array(varchar) | |
SELECT id, article, price, amount, address.road, address.city, tags FROM orders ORDER BY id;
-- 1 | ice | 1.50 | NULL | NULL | NULL | NULL
-- 2 | tusk | 9.99 | 7 | Storgata | Tromsø | ['big', 'cold']
-- 3 | fin | NULL | NULL | NULL | NULL | NULL
SELECT * FROM orders FOR VERSION AS OF :before WHERE id = 2;
-- 2 | tusk | 9.99 | 2026-01-02 09:30:00+00:00
ALTER TABLE orders DROP COLUMN tags;

-- Changing partitions and the order of rows
ALTER TABLE orders SET PROPERTIES partitioning = ARRAY['bucket(id, 4)', 'truncate(article, 1)', 'day(placed)'];
ALTER TABLE orders SET PROPERTIES sorted_by = ARRAY['price DESC NULLS LAST'];
INSERT INTO orders (id, article, placed) VALUES (5, 'fur', TIMESTAMP '2026-03-01 00:00:00 UTC');
-- 1
SELECT article FROM orders WHERE placed >= TIMESTAMP '2026-02-01 00:00:00 UTC' ORDER BY id;
-- fin
-- fur
SELECT partition.placed_month, partition.id_bucket, partition.article_trunc, partition.placed_day
    FROM "orders$partitions" WHERE record_count = 1 AND partition.placed_day IS NOT NULL;
-- NULL | 3 | f | 2026-03-01
ALTER TABLE orders SET PROPERTIES partitioning = ARRAY[];
ALTER TABLE orders SET PROPERTIES format_version = 2;
ALTER TABLE orders SET PROPERTIES max_commit_retry = 10;
SELECT value FROM "orders$properties" WHERE key = 'commit.retry.num-retries';
-- 10

-- Metadata tables
SELECT operation FROM "orders$snapshots" ORDER BY committed_at;
-- append
-- append
-- overwrite
-- delete
-- overwrite
-- delete
-- overwrite
-- append
SELECT count(*) FROM "orders$history" WHERE is_current_ancestor;
-- 4
SELECT name, type FROM "orders$refs";
-- main | BRANCH
SELECT count(*) > 15, max(latest_schema_id) FROM "orders$metadata_log_entries";
-- true | 12
SELECT content, count(*), sum(record_count) FROM "orders$files" GROUP BY 1 ORDER BY 1;
-- 0 | 4 | 5
-- 1 | 1 | 1
SELECT count(*) FROM "orders$manifests";
-- 3

-- Statistics and upkeep
ANALYZE orders;
SHOW STATS FOR january;
-- id | NULL | 2.0 | 0.0 | NULL | NULL | NULL
-- item | NULL | 2.0 | 0.0 | NULL | NULL | NULL
-- NULL | NULL | NULL | NULL | 2.0 | NULL | NULL
ALTER TABLE orders EXECUTE optimize;
SELECT content, count(*), sum(record_count) FROM "orders$files" GROUP BY 1;
-- 0 | 1 | 4
ALTER TABLE orders EXECUTE optimize_manifests;
SET SESSION lake.expire_snapshots_min_retention = '0s';
ALTER TABLE orders EXECUTE expire_snapshots(retention_threshold => '0s');
SELECT count(*) FROM "orders$snapshots";
-- 1
SELECT * FROM orders FOR VERSION AS OF :before;
-- fails: Iceberg snapshot ID does not exists: :before
SET SESSION lake.remove_orphan_files_min_retention = '0s';
ALTER TABLE orders EXECUTE remove_orphan_files(retention_threshold => '0s');
SELECT id, article, price, amount FROM orders ORDER BY id;
-- 1 | ice | 1.50 | NULL
-- 2 | tusk | 9.99 | 7
-- 3 | fin | NULL | NULL
-- 5 | fur | NULL | NULL
ALTER TABLE orders EXECUTE drop_extended_stats;
TRUNCATE TABLE january;
SELECT * FROM january;
-- no rows

-- Views. A view that Trino makes is read by Trino alone: its SQL is Trino's.
CREATE VIEW dear SECURITY INVOKER AS SELECT id, article FROM orders WHERE price > 2;
SELECT * FROM dear;
-- 2 | tusk
CREATE OR REPLACE VIEW dear AS SELECT id, article, price FROM orders WHERE price > 1;
COMMENT ON VIEW dear IS 'what costs something';
ALTER VIEW dear RENAME TO priced;
SELECT * FROM priced ORDER BY id;
-- 1 | ice | 1.50
-- 2 | tusk | 9.99
SELECT table_name, table_type FROM lake.information_schema.tables WHERE table_schema = 'trino' ORDER BY 1;
-- january | BASE TABLE
-- orders | BASE TABLE
-- priced | VIEW
CREATE VIEW orders AS SELECT 1 AS one;
-- fails: Table already exists: 'lake.trino.orders'
CREATE MATERIALIZED VIEW sums AS SELECT sum(price) AS total FROM orders;
-- fails: createMaterializedView is not supported for Iceberg REST catalog

-- Moving and dropping
ALTER TABLE orders RENAME TO lake."trino.europe".orders;
SELECT count(*) FROM lake."trino.europe".orders;
-- 4
ALTER TABLE lake."trino.europe".orders RENAME TO lake.trino.orders;
SELECT regexp_extract(file, '[^/]+$') FROM "orders$metadata_log_entries" ORDER BY timestamp DESC LIMIT 1;
-- :metadata
SELECT regexp_replace("$path", '/data/.*') FROM orders LIMIT 1;
-- :location
CALL lake.system.unregister_table('trino', 'orders');
SELECT * FROM orders;
-- fails: Table 'lake.trino.orders' does not exist
CALL lake.system.register_table('trino', 'orders', ':location', ':metadata');
SELECT count(*) FROM orders;
-- 4
DROP VIEW priced;
DROP TABLE january;
DROP SCHEMA lake."trino.europe";
-- fails: Cannot drop non-empty schema 'trino.europe'
DROP SCHEMA lake."trino.europe" CASCADE;
DROP SCHEMA lake.elsewhere CASCADE;
