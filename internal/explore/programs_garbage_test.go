package explore

import (
	"context"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// nothingIsLeft wants a collection by hints to leave nothing that a collection of all rows finds.
func nothingIsLeft(ctx context.Context, audit *Client) error {
	if err := audit.Sleep(ctx, stall); err != nil {
		return err
	}
	if report, err := audit.DB.CollectGarbage(ctx, percolator.GCOptions{}); err != nil || report.Full {
		return fmt.Errorf("a collection by hints: %+v: %w", report, err)
	}
	report, err := audit.DB.CollectGarbage(ctx, percolator.GCOptions{Full: true})
	if err != nil {
		return fmt.Errorf("a collection of all rows: %w", err)
	}
	if report.Versions > 0 {
		return fmt.Errorf("a collection of all rows has found %d versions that no hint named", report.Versions)
	}
	return nil
}

// waitsAndCollects collects when what was written at the beginning can be collected.
func waitsAndCollects(ctx context.Context, c *Client) {
	if c.Sleep(ctx, brief.Retention+2*time.Second) == nil {
		collector(ctx, c)
	}
}

// writesAndCollects is a collector that has a session.
func writesAndCollects(ctx context.Context, c *Client) {
	_ = write(ctx, c, a, b)
	waitsAndCollects(ctx, c)
}

// replacesThenCollects overwrites a, and collects the record of whoever wrote it before.
func replacesThenCollects(ctx context.Context, c *Client) {
	_ = write(ctx, c, a)
	waitsAndCollects(ctx, c)
}

// garbage are programs of collections by hints, and by what sessions say of their locks.
func garbage() []program {
	hinted := func(name string, budget Budget, options []percolator.Option, all ...func(context.Context, *Client)) program {
		return program{Program{Name: "hints, " + name, Options: options, Setup: collected, Collects: true, Settings: brief, Clients: all, Budget: budget, Check: nothingIsLeft}, sparse}
	}
	crash := func(p program) program {
		p.Name, p.Options, p.Budget.Crash = p.Name+", store crash", deferred, 1
		return p
	}
	said := func(name string, budget Budget, all ...func(context.Context, *Client)) program {
		return program{Program{Name: "sessions, " + name, Options: plain2PC, Setup: collected, Collects: true, Settings: brief, Clients: all, Budget: budget}, sparse}
	}
	return []program{
		hinted("two collectors of which one dies", Budget{Die: 1}, onePhase, collector, collector),
		hinted("two collectors, lost replies", Budget{Lose: 2}, onePhase, collector, collector),
		hinted("two collectors of which one dies, and a writer that ends", Budget{Slow: 1}, plain2PC, waitsAndCollects, collector, writer(a, b)),
		said("dead writer and a collector", Budget{Die: 1}, writer(a, b), replacesThenCollects),
		said("stalled writer and a collector", Budget{Stall: 1}, writer(a, b), replacesThenCollects),
		said("dead writer and two collectors of which one dies", Budget{Die: 2}, writer(a, b), replacesThenCollects, waitsAndCollects),
		said("collectors that write", Budget{Die: 1, Lose: 1}, writesAndCollects, replacesThenCollects, writer(b, a)),
		crash(said("writer and a collector", Budget{Slow: 1}, writer(a, b), replacesThenCollects)),
		crash(said("dead writer and two collectors", Budget{Die: 1}, writer(a, b), replacesThenCollects, writesAndCollects)),
		said("slow writer, late renewal, and two collectors", Budget{Slow: 2, Late: 1}, longReader(3*time.Second), writesAndCollects, waitsAndCollects),
	}
}
