package monitoring

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/otelstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exported is what an exporter makes of the metrics: series have labels, and names are the metrics themselves.
type exported struct {
	series map[string][]string
	names  map[string]bool
}

// collect has every instrument of the library measure something.
func collect(t *testing.T) exported {
	t.Helper()
	ctx := t.Context()
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	store, err := otelstore.New(memstore.New(), otelstore.Options{Meters: meters})
	require.NoError(t, err)
	db, err := percolator.New(ctx, store, percolator.WithMetrics(meters))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }()
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	timers := make(chan struct{}, 1)
	require.NoError(t, w.Observe(percolator.Observer{Name: "o", Table: "t", Column: "c", OnChange: func(_ context.Context, _ *percolator.Txn, c percolator.Change) error {
		if !c.Due.IsZero() {
			select {
			case timers <- struct{}{}:
			default:
			}
		}
		return nil
	}}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx)) // the observer is registered
	cell := percolator.Cell{Table: "t", Row: "r", Column: "c"}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.NotifyAfter(ctx, cell, 10*time.Millisecond) }))
	select {
	case <-timers:
	case <-time.After(time.Minute):
		t.Fatal("the timer has not fired")
	}
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)
	refused := rowstore.Mutation{
		Table: "t", Row: "x", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 0)},
		Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, nil)},
	}
	for range 2 {
		_, err = store.Apply(ctx, []rowstore.Mutation{refused}, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	var data metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(ctx, &data))
	all := exported{map[string][]string{}, map[string]bool{}}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			all.add(t, m)
		}
	}
	require.Greater(t, len(all.names), 40)
	return all
}

// add names what an exporter makes of a metric: dots become underscores, the unit of seconds is added, and _total to counters; a
// histogram becomes three.
func (e *exported) add(t *testing.T, m metricdata.Metrics) {
	t.Helper()
	e.names[m.Name] = true
	name := strings.ReplaceAll(m.Name, ".", "_")
	if m.Unit == "s" {
		name += "_seconds"
	}
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		e.series[name+"_total"] = labels(d.DataPoints)
	case metricdata.Gauge[int64]:
		e.series[name] = labels(d.DataPoints)
	case metricdata.Gauge[float64]:
		e.series[name] = labels(d.DataPoints)
	case metricdata.Histogram[int64]:
		e.histogram(name, histogramLabels(d.DataPoints))
	case metricdata.Histogram[float64]:
		e.histogram(name, histogramLabels(d.DataPoints))
	default:
		require.Fail(t, "a kind of metric that is not known here", "%s: %T", m.Name, m.Data)
	}
}

func (e *exported) histogram(name string, of []string) {
	e.series[name+"_bucket"] = append(slices.Clone(of), "le")
	e.series[name+"_sum"], e.series[name+"_count"] = of, of
}

func labels[N int64 | float64](points []metricdata.DataPoint[N]) (all []string) {
	for i := range points {
		all = append(all, keys(points[i].Attributes)...)
	}
	return all
}

func histogramLabels[N int64 | float64](points []metricdata.HistogramDataPoint[N]) (all []string) {
	for i := range points {
		all = append(all, keys(points[i].Attributes)...)
	}
	return all
}

func keys(s attribute.Set) (all []string) {
	for i := s.Iter(); i.Next(); {
		all = append(all, string(i.Attribute().Key))
	}
	return all
}

// What an expression names: series with what is demanded of their labels, and labels to group by.
var (
	serieses  = regexp.MustCompile(`(percolator_[a-z_]+)(?:\{([^}]*)\})?`)
	demands   = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	groupings = regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
)

// check checks the names and labels of an expression, and returns how many metrics it has.
func (e *exported) check(expr string) (metrics int, wrong []string) {
	known := []string{"job", "instance"}
	for _, m := range serieses.FindAllStringSubmatch(expr, -1) {
		of, ok := e.series[m[1]]
		if !ok {
			wrong = append(wrong, "no metric "+m[1])
		}
		metrics++
		known = append(known, of...)
		for _, d := range demands.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(of, d[1]) && d[1] != "job" {
				wrong = append(wrong, m[1]+" has no label "+d[1])
			}
		}
	}
	for _, g := range groupings.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			if label = strings.TrimSpace(label); !slices.Contains(known, label) {
				wrong = append(wrong, "no label "+label)
			}
		}
	}
	return metrics, wrong
}

// headings are the sections of a document, as links name them.
func headings(t *testing.T, path string) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(path) //nolint:gosec // of the test
	require.NoError(t, err)
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(b), -1) {
		all[strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")] = true
	}
	return all
}

func TestFilesNameWhatThereIs(t *testing.T) {
	t.Parallel()
	all := collect(t)
	t.Run("rules", func(t *testing.T) { checkRules(t, &all) })
	t.Run("dashboard", func(t *testing.T) { checkDashboard(t, &all) })
	t.Run("document", func(t *testing.T) { checkDocument(t, &all) })
	_, wrong := all.check(`sum by (nothing) (percolator_nothing{call="x"}) + percolator_parked{call="x"}`)
	require.Len(t, wrong, 4, "the check finds nothing")
}

// rule is one of rules.yml.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

type rules struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

func readRules(t *testing.T) (file rules) {
	t.Helper()
	b, err := os.ReadFile("rules.yml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalWithOptions(b, &file, yaml.Strict()))
	return file
}

// A pause that somebody has ordered pages nobody.
func TestAlertsLeaveOutWhatIsPaused(t *testing.T) {
	t.Parallel()
	old, tells := 0, false
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			require.NotContains(t, r.Expr, "percolator_backlog_oldest_seconds", "%s: it is of all columns", r.Alert)
			if strings.Contains(r.Expr, "percolator_observer_backlog_oldest_seconds") {
				old++
				require.Contains(t, r.Expr, "percolator_observer_backlog_oldest_seconds unless on (job, table, column) (percolator_observer_paused == 1)", r.Alert)
			} else if strings.Contains(r.Expr, "percolator_observer_paused") {
				tells = true
			}
		}
	}
	require.Equal(t, 2, old)
	require.True(t, tells, "nothing tells of a pause that lasts")
}

func checkRules(t *testing.T, all *exported) {
	file := readRules(t)
	sections := headings(t, "../runbooks.md")
	seen := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			require.False(t, seen[r.Alert], r.Alert)
			seen[r.Alert] = true
			n, wrong := all.check(r.Expr)
			require.Positive(t, n, r.Alert)
			require.Empty(t, wrong, r.Alert)
			require.Contains(t, []string{"page", "ticket"}, r.Labels["severity"], r.Alert)
			require.NotEmpty(t, r.Annotations["summary"], r.Alert)
			_, err := time.ParseDuration(r.For)
			require.NoError(t, err, r.Alert)
			section, ok := strings.CutPrefix(r.Annotations["runbook"], "docs/runbooks.md#")
			require.True(t, ok && sections[section], "%s: no section %q of the runbooks", r.Alert, r.Annotations["runbook"])
		}
	}
	require.Greater(t, len(seen), 10)
}

func checkDashboard(t *testing.T, all *exported) {
	b, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Query string } }
	}
	require.NoError(t, json.Unmarshal(b, &board))
	require.NotEmpty(t, board.Panels)
	for _, p := range board.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			n, wrong := all.check(target.Expr)
			require.Positive(t, n, p.Title)
			require.Empty(t, wrong, p.Title)
		}
	}
	for _, v := range board.Templating.List {
		_, wrong := all.check(v.Query)
		require.Empty(t, wrong)
	}
}

// checkDocument holds the table of what to watch to the metrics. A name that begins with a dot takes the place of the last part
// of the one before.
func checkDocument(t *testing.T, all *exported) {
	b, err := os.ReadFile("../operations.md")
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "`percolator.") {
			continue
		}
		last := ""
		for _, m := range regexp.MustCompile("`([a-z_.]+)`").FindAllStringSubmatch(cells[1], -1) {
			name := m[1]
			if strings.HasPrefix(name, ".") {
				name = last[:strings.LastIndex(last, ".")] + name
			}
			require.True(t, all.names[name], "docs/operations.md names a metric that is not there: %s", name)
			last = name
			n++
		}
	}
	require.Greater(t, n, 15)
}
