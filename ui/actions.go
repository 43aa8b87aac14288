package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/stuck"
	"github.com/percolate-go/percolate/percolator"
)

// action is something that the page can change. Its confirmation says what it does, and do does it.
type action struct {
	title string
	// needs are the names that it cannot do without.
	needs []string
	// what says in words what will happen.
	what []string
	// edit are names that may be changed on the confirmation.
	edit []string
	// back is the view that shows the effect.
	back string
	do   func(ctx context.Context, h *Handler, a *asked) (string, error)
}

// asked is an action with its names.
type asked struct {
	who, observer string
	cell          percolator.Cell
	change        percolator.Timestamp // that a run is parked for, 0 for any
	from, to      string
	// next is where another step goes on, where the action has not done all that was asked for.
	next admin.Bytes
}

func (a *asked) run() percolator.ParkedRun {
	return percolator.ParkedRun{Observer: a.observer, Cell: a.cell, Change: a.change}
}

func (a *asked) rng() percolator.Range {
	return percolator.Range{Table: a.cell.Table, From: a.from, To: a.to}
}

var (
	oneObserver = []string{"observer"}
	oneRun      = []string{"observer", "table", "row", "column"}
	oneChange   = []string{"observer", "table", "row", "column", "change"}
	oneReplay   = []string{"observer", "table"}
)

// A step of "retry all" ends after any of these: nobody waits for it for longer than a browser does, and the next one goes on behind it.
const (
	mostReleased = 1000             // parked runs that are released
	mostForeign  = 5                // pages with few or none: each has looked at 100 times as many parked runs of others
	releaseTime  = 10 * time.Second // looked at between pages
)

const actionTimeout = 20 * time.Second // of an action

var actions = map[string]action{
	"pause": {"Pause an observer", oneObserver, []string{
		"No worker begins a run of it until it is resumed. Runs that have begun go on.",
		"Its changes wait. Nothing is lost, but what it derives is not kept up.",
	}, nil, "observers", func(ctx context.Context, h *Handler, a *asked) (string, error) {
		return "It is paused.", h.db.PauseObserver(ctx, a.observer)
	}},
	"resume": {"Resume an observer", oneObserver, []string{"Its pause ends, and workers run what waits."}, nil, "observers", func(ctx context.Context, h *Handler, a *asked) (string, error) {
		return "It is resumed.", h.db.ResumeObserver(ctx, a.observer)
	}},
	"release": {"Retry a parked run", oneRun, []string{"Its observer attempts it again, with a fresh count of attempts. Other observers of the column run for the cell again, too."}, nil, "parked", func(ctx context.Context, h *Handler, a *asked) (string, error) {
		return "It is released.", h.db.Release(ctx, a.run())
	}},
	"release-all": {"Retry the parked runs of an observer", oneObserver, []string{
		fmt.Sprintf("Its parked runs are attempted again, up to %d of them, with a fresh count of attempts. If there may be others, the answer has a link that goes on behind them.", mostReleased),
		"Mend what they failed for first, or they are parked again.",
	}, nil, "parked", releaseAll},
	"drop": {"Drop a parked run", oneChange, []string{
		"The observer counts as having seen the change, without a run for it. A later change is not touched.",
		"What the run would have done is lost, and so is the difference for an observer of old values. There is no way back.",
	}, nil, "parked", func(ctx context.Context, h *Handler, a *asked) (string, error) {
		if err := h.db.DropParked(ctx, a.run()); err != nil {
			return "", err
		}
		_, still, err := h.r.ParkedRun(ctx, a.observer, a.cell)
		if still {
			return "It was not dropped: it is parked for another change, or the cell has changed since, and the observer runs for that.", err
		}
		return "It is dropped.", err
	}},
	"replay": {"Replay an observer", oneReplay, []string{
		"It runs again for every cell of its columns in these rows that has a value. Its function must set what it derives, not add to it.",
		"The runs are made by the workers, a few at a time, and take as long as they take. If this program ends, the replay goes on with the next one of the same rows.",
	}, []string{"from", "to"}, "replays", func(_ context.Context, h *Handler, a *asked) (string, error) {
		return "It is under way.", h.replays.begin(a.who, a.observer, a.rng())
	}},
	"cancel-replay": {"Cancel a replay", oneReplay, []string{"Nothing more is asked for, and how far it has got is forgotten. What was asked for runs."}, nil, "replays", func(ctx context.Context, h *Handler, a *asked) (string, error) {
		return "It is cancelled.", h.db.CancelReplay(ctx, a.observer, a.rng())
	}},
}

// releaseAll releases parked runs of one observer, from a.from on. It does a bounded step, because the runs of others may lie before and
// between them, and sets a.next if there is more to look at.
func releaseAll(ctx context.Context, h *Handler, a *asked) (string, error) {
	began, n, foreign, from := time.Now(), 0, 0, admin.Bytes(a.from)
	var failed stuck.RunsError
	for {
		runs, next, err := h.r.Parked(ctx, a.observer, from, mostListed)
		for i := range runs {
			if err != nil {
				break
			}
			if err = h.db.Release(ctx, runs[i].Run()); err == nil {
				n++
			} else {
				err = failed.Take(&runs[i], err)
			}
		}
		switch {
		case errors.Is(err, context.DeadlineExceeded) && from != admin.Bytes(a.from):
			next = from // what was looked at so far need not be looked at again
		case err != nil:
			return "", fmt.Errorf("%w (%d were released before)", err, n)
		case next == "":
			return fmt.Sprintf("%d parked runs are released.%s There are no others behind.", n, andStay(&failed)), nil
		}
		if len(runs) < mostListed {
			foreign++
		}
		if from = next; err != nil || n >= mostReleased || foreign >= mostForeign || time.Since(began) > releaseTime {
			a.next = next
			return fmt.Sprintf("%d parked runs are released, and not all were looked at: it has got to %s.%s", n, short(next), andStay(&failed)), nil
		}
	}
}

// andStay says which runs could not be released, if any.
func andStay(failed *stuck.RunsError) string {
	if failed.Len() == 0 {
		return ""
	}
	return fmt.Sprintf(" %d could not be released, and stay: %v.", failed.Len(), failed)
}

// field is a name of an action on its confirmation.
type field struct {
	Name  string
	Value admin.Bytes
	Edit  bool
}

type confirmation struct {
	Do, Title string
	What      []string
	Fields    []field
	Back      string
}

// ask reads the names of an action.
func (q *query) ask() (do string, act action, a asked, err error) {
	do = q.values.Get("do")
	act, ok := actions[do]
	if !ok {
		return do, act, a, fmt.Errorf("%w: there is no action %q", percolator.ErrInvalid, do)
	}
	n, err := q.names("observer", "table", "row", "column", "from", "to")
	if err != nil {
		return do, act, a, err
	}
	change, err := q.stamp("change")
	if err != nil {
		return do, act, a, err
	}
	a = asked{who: q.access.Who, observer: n[0], cell: percolator.Cell{Table: n[1], Row: n[2], Column: n[3]}, change: change, from: n[4], to: n[5]}
	for _, name := range act.needs {
		if s, _ := q.name(name); s == "" {
			return do, act, a, fmt.Errorf("%w: the %s is missing", percolator.ErrInvalid, name)
		}
	}
	return do, act, a, nil
}

// confirm says what an action will do, with the form for it.
func (h *Handler) confirm(_ context.Context, q *query) (any, error) {
	if !q.actions() {
		return nil, errNoActions
	}
	do, act, _, err := q.ask()
	if err != nil {
		return nil, err
	}
	c := confirmation{Do: do, Title: act.title, What: act.what, Back: act.back}
	for _, name := range []string{"observer", "table", "row", "column", "change", "from", "to"} {
		edit := false
		for _, e := range act.edit {
			edit = edit || e == name
		}
		s, _ := q.name(name)
		if s != "" || edit {
			c.Fields = append(c.Fields, field{name, admin.Bytes(s), edit})
		}
	}
	return &c, nil
}

// post serves the forms of who may look.
func (h *Handler) post(w http.ResponseWriter, r *http.Request, name string, q *query) {
	if err := r.ParseForm(); err != nil {
		h.fail(w, q, http.StatusBadRequest, "the form cannot be read")
		return
	}
	if !h.genuine(r, q.access) {
		h.o.Logger.Warn("ui: a form without its secret is refused", "who", q.access.Who, "from", r.RemoteAddr)
		h.fail(w, q, http.StatusForbidden, "This form is of another login, or of a program that has ended. Go back, load the page again, and try anew.")
		return
	}
	switch name {
	case "act":
		h.act(w, r, q)
	case "logout":
		if h.o.Login != nil {
			h.o.Login.leave(w, r)
		}
		w.Header().Set("Location", "./")
		w.WriteHeader(http.StatusSeeOther)
	default:
		h.fail(w, q, http.StatusNotFound, "there is no such form")
	}
}

// acted is what an action has done. Next is the address of the confirmation of the next step, "" if there is none.
type acted struct {
	Title, Text, Back, Next string
	Fields                  []field
}

// act does what a form asks for. What it asks for stands in the form alone, never in the address.
func (h *Handler) act(w http.ResponseWriter, r *http.Request, q *query) {
	if !q.actions() {
		h.failed(w, q, errNoActions)
		return
	}
	q.values = r.PostForm
	do, act, a, err := q.ask()
	if err != nil {
		h.failed(w, q, err)
		return
	}
	var text string
	err = h.gate.within(r.Context(), func() (err error) {
		// Who closes the browser does not leave an action half done.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actionTimeout)
		defer cancel()
		text, err = act.do(ctx, h, &a)
		return err
	})
	log := h.o.Logger.With("action", do, "who", a.who, "observer", a.observer, "table", a.cell.Table, "row", admin.Bytes(cut(a.cell.Row)).String(), "column", a.cell.Column,
		"change", uint64(a.change), "from", admin.Bytes(cut(a.from)).String(), "to", admin.Bytes(cut(a.to)).String())
	if err != nil {
		log.Warn("ui: an action has failed", "error", err)
		h.failed(w, q, err)
		return
	}
	log.Info("ui: an action")
	done := acted{Title: act.title, Text: text, Back: act.back}
	for _, f := range []field{{Name: "observer", Value: admin.Bytes(a.observer)}, {Name: "table", Value: admin.Bytes(a.cell.Table)}, {Name: "row", Value: admin.Bytes(a.cell.Row)}, {Name: "column", Value: admin.Bytes(a.cell.Column)}} {
		if f.Value != "" {
			done.Fields = append(done.Fields, f)
		}
	}
	if a.next != "" {
		if done.Next, err = link("confirm", "do", do, "observer", admin.Bytes(a.observer), "from", a.next); err != nil {
			h.fail(w, q, http.StatusInternalServerError, err.Error())
			return
		}
	}
	h.render(w, http.StatusOK, "done", &page{Title: act.title, View: "act", Data: &done}, q)
}
