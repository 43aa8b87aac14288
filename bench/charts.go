package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// chartKind says what a workload's chart shows.
type chartKind string

const (
	// rateChart is operations per second: bars, or lines over what the series vary
	// in. Series also get a chart of their median latency.
	rateChart chartKind = "rate"
	// timeChart is operations per second over time.
	timeChart chartKind = "time"
	// latencyChart is the median latency alone.
	latencyChart chartKind = "latency"
)

// timelineStep is the resolution of Sample.Timeline.
const timelineStep = 0.25 // seconds

const chartWidth, chartHeight = 16 * vg.Centimeter, 9 * vg.Centimeter

// charts are the names of a result's charts.
func (r Result) charts() []string {
	switch {
	case r.Chart == "":
		return nil
	case r.XAxis == "":
		return []string{r.Workload + ".svg"}
	case r.Chart == latencyChart:
		return []string{r.Workload + "-latency.svg"}
	}
	return []string{r.Workload + ".svg", r.Workload + "-latency.svg"}
}

// draw writes the charts of all results that have one.
func (r Report) draw(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	for _, result := range r.Results {
		for _, name := range result.charts() {
			path := filepath.Join(dir, name)
			var err error
			switch {
			case result.Chart == timeChart:
				err = result.drawTimeline(path)
			case result.XAxis == "":
				err = result.drawBars(path)
			case strings.HasSuffix(name, "-latency.svg"):
				err = result.drawSeries(path, "median latency, ms", func(s Summary) float64 { return s.P50 / 1e3 })
			default:
				err = result.drawSeries(path, "per second", func(s Summary) float64 { return s.Rate })
			}
			if err != nil {
				return fmt.Errorf("%s: %w", result.Workload, err)
			}
		}
	}
	return nil
}

func newChart(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(6)
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	p.Add(grid)
	return p
}

// drawSeries draws one line for each series. The axis of what varies is
// logarithmic when it spans more than a factor of 20, and so is the other.
func (r Result) drawSeries(path, what string, value func(Summary) float64) error {
	p := newChart(r.About, r.XAxis, what)
	var names []string
	points := map[string]plotter.XYs{}
	for _, s := range r.Sides {
		if s.Series == "" {
			continue
		}
		if _, ok := points[s.Series]; !ok {
			names = append(names, s.Series)
		}
		points[s.Series] = append(points[s.Series], plotter.XY{X: s.X, Y: value(s)})
	}
	var xs, ys []float64
	for i, name := range names {
		line, dots, err := plotter.NewLinePoints(points[name])
		if err != nil {
			return err
		}
		line.Color, dots.Color = plotutil.Color(i), plotutil.Color(i)
		line.Width, dots.Shape = vg.Points(1.5), plotutil.Shape(i)
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
		for _, xy := range points[name] {
			xs, ys = append(xs, xy.X), append(ys, xy.Y)
		}
	}
	if len(xs) == 0 {
		return nil
	}
	if spans(xs) {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
		p.X.Min, p.X.Max = slices.Min(xs)*0.8, slices.Max(xs)*1.25
	}
	if spans(ys) {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
		p.Y.Min, p.Y.Max = slices.Min(ys)*0.6, slices.Max(ys)*3
	} else {
		p.Y.Min, p.Y.Max = 0, slices.Max(ys)*1.35 // room for the legend
		p.Y.Tick.Marker = plain{}
	}
	return p.Save(chartWidth, chartHeight, path)
}

// spans tells whether values are better shown on a logarithmic axis.
func spans(v []float64) bool { return slices.Min(v) > 0 && slices.Max(v) > 20*slices.Min(v) }

// drawBars draws one bar for each side, its label at the left, so that there is
// room for long names.
func (r Result) drawBars(path string) error {
	p := newChart(r.About, "per second", "")
	var names []string
	var values plotter.Values
	for i := range r.Sides { // the first on top
		s := r.Sides[len(r.Sides)-1-i]
		names = append(names, s.Side)
		values = append(values, s.Rate)
	}
	bars, err := plotter.NewBarChart(values, vg.Points(14))
	if err != nil {
		return err
	}
	bars.Horizontal, bars.Color, bars.LineStyle.Width = true, plotutil.Color(2), 0
	p.Add(bars)
	p.NominalY(names...)
	p.X.Min, p.X.Tick.Marker = 0, plain{}
	return p.Save(chartWidth, vg.Length(2+0.9*float64(len(names)))*vg.Centimeter, path)
}

// drawTimeline draws the first repeat of each side over time, with what was done
// to the system.
func (r Result) drawTimeline(path string) error {
	p := newChart(r.About, "seconds", "per second")
	most := 0.0
	for i, s := range r.Sides {
		var xy plotter.XYs
		for n, v := range s.Samples[0].Timeline {
			xy = append(xy, plotter.XY{X: (float64(n) + 0.5) * timelineStep, Y: v})
			most = max(most, v)
		}
		if len(xy) == 0 {
			continue
		}
		line, err := plotter.NewLine(xy)
		if err != nil {
			return err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(1.5)
		p.Add(line)
		p.Legend.Add(s.Side, line)
	}
	var marks plotter.XYLabels
	for _, s := range r.Sides {
		for _, e := range s.Samples[0].Events {
			marks.XYs = append(marks.XYs, plotter.XY{X: e.At, Y: 1.12 * most})
			marks.Labels = append(marks.Labels, e.What)
			mark, err := plotter.NewLine(plotter.XYs{{X: e.At, Y: 0}, {X: e.At, Y: 1.1 * most}})
			if err != nil {
				return err
			}
			mark.Dashes = []vg.Length{vg.Points(3), vg.Points(3)}
			p.Add(mark)
		}
	}
	if len(marks.Labels) > 0 {
		labels, err := plotter.NewLabels(marks)
		if err != nil {
			return err
		}
		p.Add(labels)
	}
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, 1.4*most+1, plain{}
	return p.Save(chartWidth, chartHeight, path)
}

// plain labels the ticks of a linear axis without powers of ten.
type plain struct{}

func (plain) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = short(ticks[i].Value)
		}
	}
	return ticks
}

// decades labels the ticks of a logarithmic axis at the powers of ten, and between
// them where there are few.
type decades struct{}

func (decades) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	few := high/low < 1000
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for n := 1.0; n < 10; n++ {
			v := n * math.Pow(10, e)
			if v < low || v > high {
				continue
			}
			t := plot.Tick{Value: v}
			if n == 1 || few && (n == 2 || n == 5) {
				t.Label = short(v)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// short writes a number as people do: 250k, 10M.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return strings.TrimSuffix(fmt.Sprintf("%.3g", v/1e6), ".0") + "M"
	case a >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}
