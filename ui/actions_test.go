package ui_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/ui"
)

// act goes through the confirmation of an action, as a person does, and returns the answer.
func (w *world) act(do string, names ...string) answer {
	w.t.Helper()
	v := url.Values{"do": {do}}
	for i := 0; i+1 < len(names); i += 2 {
		v.Set(names[i], names[i+1])
	}
	sure := w.get("confirm?" + v.Encode())
	require.Equal(w.t, http.StatusOK, sure.status, sure.body)
	return w.post("act", form(w.t, sure.body, "act"))
}

func typed(t *testing.T, c percolator.Cell) []string {
	t.Helper()
	v, err := url.ParseQuery(strings.TrimPrefix(link(t, c), "cell?"))
	require.NoError(t, err)
	return []string{"observer", typedName(badName), "table", v.Get("table"), "row", v.Get("row"), "column", v.Get("column")}
}

func (w *world) parked() int {
	w.t.Helper()
	runs, err := w.db.Parked(w.t.Context())
	require.NoError(w.t, err)
	return len(runs)
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Actions: true})
	w.login()
	paused := func() bool {
		infos, err := w.db.Observers(t.Context())
		require.NoError(t, err)
		return infos[0].Paused
	}
	a := w.act("pause", "observer", typedName(badName))
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.True(t, paused())
	require.Contains(t, w.get("observers").body, "resume")
	require.Contains(t, w.log.String(), `msg="ui: an action" action=pause who=ann`)
	a = w.act("resume", "observer", typedName(badName))
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.False(t, paused())
	require.Equal(t, http.StatusNotFound, w.act("pause", "observer", "nobody").status)
	require.Contains(t, w.log.String(), "an action has failed")
}

func TestRetryAndDrop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Actions: true})
	w.login()
	require.Equal(t, 1, w.parked())
	a := w.act("release", typed(t, badCell)...)
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Zero(t, w.parked())

	again := percolator.Observer{Name: badName, Table: badCell.Table, Column: badCell.Column, Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(fmt.Errorf("again"))
	}}
	w.runUntilIdle(again)
	require.Equal(t, 2, w.parked()) // this one and the cell that was written later
	a = w.act("drop", append(typed(t, badCell), "change", "7")...)
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Contains(t, a.body, "not dropped")
	require.Equal(t, 2, w.parked(), "it is not parked for that change")
	require.Equal(t, http.StatusBadRequest, w.get("confirm?do=drop&change=soon").status)
	drop := regexp.MustCompile(`confirm\?[^"]*do=drop[^"]*`).FindString(w.get("parked").body)
	require.Contains(t, drop, "change=")
	require.Equal(t, http.StatusBadRequest, w.get("confirm?"+url.Values{"do": {"drop"}, "observer": {typedName(badName)}, "table": {"t"}, "row": {"r"}, "column": {"c"}}.Encode()).status, "without a change")
	a = w.post("act", form(t, w.get(html.UnescapeString(drop)).body, "act"))
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Contains(t, a.body, "It is dropped.")
	require.Contains(t, w.log.String(), "change=")
	require.Equal(t, 1, w.parked())
	a = w.act("release-all", "observer", typedName(badName))
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Contains(t, a.body, "1 parked runs are released.")
	require.Zero(t, w.parked())
}

// TestReplay begins a replay, watches it wait for a worker, sees it done, and cancels another one.
func TestReplay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Actions: true})
	w.login()
	w.busy = true
	state := func(says string) func() bool {
		return func() bool { return strings.Contains(w.get("replays").body, says) }
	}
	sure := w.get("confirm?do=replay&observer=" + query(badName) + "&table=" + query(badCell.Table))
	f := form(t, sure.body, "act")
	f.Set("to", "m") // the cell "later" alone
	require.Equal(t, http.StatusOK, w.post("act", f).status)
	require.Eventually(t, state("under way"), time.Minute, 10*time.Millisecond)
	require.Equal(t, http.StatusOK, w.post("act", f).status)
	require.Equal(t, 1, strings.Count(w.get("replays").body, "under way"), "it is the same replay")
	fine := percolator.Observer{Name: badName, Table: badCell.Table, Column: badCell.Column, Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }}
	w.runUntil(func(*percolator.Worker) {
		require.Eventually(t, state("done: 1 cells"), time.Minute, 10*time.Millisecond)
	}, fine)

	f.Set("to", "z") // nobody runs it any more
	require.Equal(t, http.StatusOK, w.post("act", f).status)
	require.Eventually(t, state("under way"), time.Minute, 10*time.Millisecond)
	a := w.act("cancel-replay", "observer", typedName(badName), "table", typedName(badCell.Table), "to", "z")
	require.Equal(t, http.StatusOK, a.status, a.body)

	// The end of the page ends it. Nothing begins afterwards.
	require.NotContains(t, w.log.String(), "context canceled")
	require.NoError(t, w.page.Close(t.Context()))
	require.Regexp(t, `msg="ui: a replay has ended".*context canceled`, w.log.String())
	require.Equal(t, http.StatusServiceUnavailable, w.get("replays").status)
	require.Equal(t, http.StatusServiceUnavailable, w.post("act", f).status)
}

// TestRetryAllGoesOn retries the runs of an observer that lie behind many thousands of another one's. No step takes them all, and each
// begins where the one before ended.
func TestRetryAllGoesOn(t *testing.T) {
	t.Parallel()
	const others = 26_000
	w := newWorld(t, ui.Access{Who: "ann", Actions: true})
	w.login()
	late := percolator.Cell{Table: "z", Row: "r", Column: "c"}
	require.NoError(t, w.db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(late, nil) }))
	w.runUntilIdle(percolator.Observer{Name: "late", Table: late.Table, Column: late.Column, Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		return percolator.Park(errors.New("no"))
	}})
	now, err := w.db.Now(t.Context())
	require.NoError(t, err)
	var all []rowstore.Mutation
	for i := range others {
		c := format.Cell{Table: "m", Row: fmt.Sprintf("r%05d", i), Column: "c"}
		p := format.NewParked("other", c, format.Failure{Change: 1, Attempts: 1}, errors.New("no"), now)
		parked, err := p.Encode()
		require.NoError(t, err)
		at := format.ParkedCell("other", c)
		record := format.Write{Kind: format.KindPut, Start: now - 2, Value: parked}
		all = append(all, rowstore.Mutation{Table: at.Table, Row: at.Row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, at.Column, now-1, record.Encode())}})
	}
	_, err = w.store.Apply(t.Context(), all, rowstore.ApplyOptions{})
	require.NoError(t, err)

	steps, released := 1, ""
	a := w.act("release-all", "observer", "late")
	for {
		require.Equal(t, http.StatusOK, a.status, a.body)
		released += regexp.MustCompile(`\d+ parked runs are released[^.]*\.`).FindString(a.body)
		next := regexp.MustCompile(`id="next" href="([^"]*)"`).FindStringSubmatch(a.body)
		if next == nil {
			break
		}
		steps++
		sure := w.get(html.UnescapeString(next[1]))
		require.Equal(t, http.StatusOK, sure.status, sure.body)
		f := form(t, sure.body, "act")
		require.NotEmpty(t, f.Get("from"), "the next step begins behind the last one")
		require.Equal(t, "late", f.Get("observer"))
		a = w.post("act", f)
	}
	require.Equal(t, 2, steps, released)
	require.Contains(t, released, "0 parked runs are released, and not all were looked at: it has got to ")
	require.Contains(t, released, "1 parked runs are released.")
	runs, _, err := readerOf(t, w.store).Parked(t.Context(), "late", "", 0)
	require.NoError(t, err)
	require.Empty(t, runs)
}

// TestManyReplays are refused: each is a goroutine.
func TestManyReplays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ui.Access{Who: "ann", Actions: true})
	w.login()
	w.busy = true
	f := form(t, w.get("confirm?do=replay&observer="+query(badName)+"&table="+query(badCell.Table)).body, "act")
	last := 0
	for i := range 9 {
		f.Set("to", fmt.Sprintf("m%d", i))
		last = w.post("act", f).status
		if i < 8 {
			require.Equal(t, http.StatusOK, last)
		}
	}
	require.Equal(t, http.StatusConflict, last)
	// Who waits for no end leaves them to themselves.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.page.Close(ctx); err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
}
