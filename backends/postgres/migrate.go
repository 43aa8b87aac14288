package postgres

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// fillPage is how many lines of the table notify are read at once to give them their slots. It bounds the
// memory here and the time of a statement, for which the session may have a limit.
const fillPage = 4096

// From version 4 to 5: the lines of the table notify get the slots of their rows. The table stays the same one,
// and keeps who may use it. The first statement locks it until the migration ends, so no line without a
// slot comes meanwhile.
const (
	slotColumn = `ALTER TABLE {{schema}}.notify ADD COLUMN slot integer;`
	slotKey    = `ALTER TABLE {{schema}}.notify ALTER COLUMN slot SET NOT NULL,
	DROP CONSTRAINT notify_pkey, ADD CONSTRAINT notify_pkey PRIMARY KEY (tab, slot, key, col, ts);`
)

// From version 6 to 7 (from 7 on only the functions are made anew): a column gets another name. A call of version 6 that draws and reads takes no lock of rows. One that is under
// way when this one ends could draw after a commit in one phase and miss it. But it can read only by a plan with the old
// name, and the server makes that anew once the table has changed.
const pastColumn = `ALTER TABLE {{schema}}.cell RENAME COLUMN past_lo TO past_oldest;`

// The pages go by the key of version 4. The settings say all that matters to the plan, since the session may say anything.
const (
	fillSettings = `SET LOCAL enable_indexscan = on; SET LOCAL enable_indexonlyscan = on; SET LOCAL enable_nestloop = on;
		SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off;
		SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL jit = off`
	unfilledSQL = `SELECT n.tab, n.key FROM {{schema}}.notify n WHERE (n.tab, n.key) > ($1::bytea, $2::bytea) ORDER BY n.tab, n.key LIMIT `
	fillSQL     = `UPDATE {{schema}}.notify n SET slot = u.slot FROM unnest($1::bytea[], $2::bytea[], $3::integer[]) AS u(tab, key, slot)
		WHERE n.tab = ANY (ARRAY[u.tab]) AND n.key = u.key`
)

// migration brings the tables and functions of an older version to the newest, within a transaction.
func (n names) migration(ctx context.Context, conn *pgx.Conn, from int) error {
	sql := ""
	if from == 1 {
		sql = n.expand(schemaFrom1, "{{old_entry}}", entry("ts", "val"))
	}
	if from < 7 {
		// The table that calls under way lock first is locked first here too.
		if err := exec(ctx, conn, sql+n.expand(pastColumn)); err != nil {
			return err
		}
	}
	sql = ""
	if from < 5 {
		if err := n.migrateTo5(ctx, conn); err != nil {
			return err
		}
		sql = n.expand(slotKey)
	}
	sql += n.expand(dropFunctions) + n.functions() + n.expand("UPDATE {{schema}}.meta SET version = "+strconv.Itoa(schemaVersion)+";")
	return exec(ctx, conn, sql)
}

// migrateTo5 brings the tables to version 5, but for the key of the table notify.
func (n names) migrateTo5(ctx context.Context, conn *pgx.Conn) error {
	if err := exec(ctx, conn, n.expand(slotColumn)); err != nil {
		return err
	}
	if err := n.fillSlots(ctx, conn); err != nil {
		return fmt.Errorf("filling in the slots of notifications: %w", err)
	}
	return nil
}

// fillSlots gives every line of the table notify the slot of its row, page by page.
func (n names) fillSlots(ctx context.Context, conn *pgx.Conn) error {
	if err := exec(ctx, conn, fillSettings); err != nil {
		return err
	}
	unfilled, fill := n.expand(unfilledSQL)+strconv.Itoa(fillPage), n.expand(fillSQL)
	var tab, key, slot array
	lastTab, lastKey := []byte{}, []byte{}
	for {
		res := conn.PgConn().ExecParams(ctx, unfilled, [][]byte{lastTab, lastKey}, nil, binary1, binary1).Read()
		if res.Err != nil {
			return res.Err
		}
		if len(res.Rows) == 0 {
			return nil
		}
		tab.reset(oidBytea)
		key.reset(oidBytea)
		slot.reset(oidInt4)
		for _, row := range res.Rows {
			if bytes.Equal(row[0], lastTab) && bytes.Equal(row[1], lastKey) {
				continue // another notification of the same row
			}
			lastTab, lastKey = row[0], row[1]
			tab.string(string(lastTab))
			key.string(string(lastKey))
			slot.int4(int(rowstore.Slot(string(lastTab), string(lastKey))))
		}
		params := [][]byte{tab.param(), key.param(), slot.param()}
		if res := conn.PgConn().ExecParams(ctx, fill, params, nil, binary1, binary1).Read(); res.Err != nil {
			return res.Err
		}
	}
}
