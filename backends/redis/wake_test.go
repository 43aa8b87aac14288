package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What a stranger or another version publishes may mean any row, and never nothing.
func TestParseWake(t *testing.T) {
	t.Parallel()
	require.Equal(t, rowstore.Wake{Table: "a/b%", Slots: []uint16{0xabcd, 1}}, parseWake("a%2Fb%25/abcd0001"))
	require.Equal(t, rowstore.Wake{Table: "t"}, parseWake("t/"), "any row of the table")
	require.Len(t, parseWake("t/"+strings.Repeat("abcd", wakeSlots)).Slots, wakeSlots)
	require.Equal(t, rowstore.Wake{Table: "t"}, parseWake("t/"+strings.Repeat("abcd", wakeSlots+1)), "longer than the script's: any row, and nothing to read")
	for _, s := range []string{"", "t", "t/abc", "t/abcg", "t/+123", "t/0_12", "t/abcd/abcd", "t/abcd/123", "\x00", "%"} {
		require.Zero(t, parseWake(s), "%q", s)
	}
}

// Each row is heard of, whatever its table is called, and however many rows are changed at
// once.
func TestWakesNameEachRow(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	heard := make(chan rowstore.Wake, 1000)
	go func() { _ = s.Listen(ctx, func(w rowstore.Wake) { heard <- w }) }()
	hear := func() rowstore.Wake {
		select {
		case w := <-heard:
			return w
		case <-ctx.Done():
			require.FailNow(t, "nothing was published")
			return rowstore.Wake{}
		}
	}
	require.Zero(t, hear())
	put := func(table string, rows int) (muts []rowstore.Mutation) {
		for i := range rows {
			edits := []rowstore.Edit{rowstore.Delete(rowstore.Lock, "c", 2)}
			for c := range 3 {
				edits = append(edits, rowstore.Put(rowstore.Notify, fmt.Sprint("c", c), 5, nil))
			}
			muts = append(muts, rowstore.Mutation{Table: table, Row: fmt.Sprint("r/", i), Edits: edits})
		}
		return muts
	}
	slots := func(muts []rowstore.Mutation) (slots []uint16) {
		for i := range muts {
			slots = append(slots, rowstore.Slot(muts[i].Table, muts[i].Row))
		}
		return slots
	}
	for _, table := range []string{"t", "a/b", "%", "%2F", "/", "a:b", "\x00", "\xff\xfe", "ab12", "abcd/abcd", strings.Repeat("/", maxTable/3)} {
		for _, rows := range []int{1, 2, 256} {
			muts := put(table, rows)
			_, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
			require.NoError(t, err)
			var heardOf []uint16
			for len(heardOf) < rows { // a call may be sent in parts
				w := hear()
				require.Equal(t, table, w.Table)
				require.NotEmpty(t, w.Slots)
				heardOf = append(heardOf, w.Slots...)
			}
			require.ElementsMatch(t, slots(muts), heardOf)
		}
		muts := put(table, 257)
		outs, err := s.Group(ctx, []rowstore.Group{{Mutations: muts}})
		require.NoError(t, err)
		require.NoError(t, outs[0].Err)
		require.True(t, outs[0].Applied)
		require.Equal(t, rowstore.Wake{Table: table}, hear(), "any row")
	}
	// A stranger's message makes everybody look; what comes after it is heard of.
	c := admin(t, testserver.Redis(t))
	for _, garbage := range []string{"t", "", "t/xyz", strings.Repeat("\x00", 1<<20)} {
		require.NoError(t, c.Publish(ctx, s.channel, garbage).Err())
		require.Zero(t, hear())
	}
	muts := put("t", 1)
	_, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.Equal(t, slots(muts), hear().Slots)
	require.Empty(t, heard)
}

// What a mutation with notifications is sent as takes no memory besides the encoder's own.
func TestEncodingNotificationsTakesNoMemory(t *testing.T) {
	m := rowstore.Mutation{Table: "t", Row: "r", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0)}, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Notify, "c", 5, nil), rowstore.DeleteRange(rowstore.Notify, "d", 1, 4),
	}}
	var e writeEncoder
	require.Zero(t, testing.AllocsPerRun(100, func() {
		e.begin("", "channel")
		end := e.group(1, false, 0)
		e.mutation("{t:0}", &m)
		e.endGroup(end)
	}))
}
