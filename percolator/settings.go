package percolator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
)

// storeSettings returns the stored form of s, with tables.
func storeSettings(s Settings, tables []format.Table) format.Settings {
	return format.Settings{Tables: tables, MaxTxnAgeMs: s.MaxTxnAge.Milliseconds(), RetentionMs: s.Retention.Milliseconds(), CatalogLeaseMs: s.CatalogLease.Milliseconds()}
}

func settingsOf(s format.Settings) Settings {
	return Settings{MaxTxnAge: milliseconds(s.MaxTxnAgeMs), Retention: milliseconds(s.RetentionMs), CatalogLease: milliseconds(s.CatalogLeaseMs)}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// A change of the settings has two steps. First it is announced: Next is stored, with
// NextFrom 0. Then it is dated: NextFrom is more than a lease of Current above a
// timestamp that was drawn after the announcement could be read. A process that knows
// of the announcement uses the shorter of the two leases until NextFrom. A process that
// does not know of it no longer uses its view at NextFrom. So:
//
//   - a view of the catalog that was begun at f may be used for leaseAt(f);
//   - a process that must outwait the views that were begun before f waits for the
//     lease of outlasting(f). From NextFrom on that is Next's lease alone, even if that
//     is the shorter one.
//
// None of this depends on a clock but the oracle, and no step becomes wrong when the
// process that takes it is held up for hours in the middle.

// inForce tells whether Next is in force at ts.
func (c *catalog) inForce(ts Timestamp) bool {
	return c.Next != nil && c.NextFrom != 0 && ts >= c.NextFrom
}

// at returns the settings of the database in force at ts.
func (c *catalog) at(ts Timestamp) Settings { return settingsOf(*c.stored(ts)) }

// leaseAt returns how long a view that was begun at f may be used.
func (c *catalog) leaseAt(f Timestamp) time.Duration {
	lease := c.at(f).CatalogLease
	if c.Next != nil && !c.inForce(f) {
		lease = min(lease, settingsOf(*c.Next).CatalogLease)
	}
	return lease
}

// outlasting returns the longest lease of a view that was begun before f and may be in
// use at f or later, and the longest MaxTxnAge that such a view grants.
func (c *catalog) outlasting(f Timestamp) (maxTxnAge, lease time.Duration) {
	s := c.at(f)
	if c.Next != nil && !c.inForce(f) {
		n := settingsOf(*c.Next)
		return max(s.MaxTxnAge, n.MaxTxnAge), max(s.CatalogLease, n.CatalogLease)
	}
	return s.MaxTxnAge, s.CatalogLease
}

// lastCommit returns the greatest commit timestamp that MaxTxnAge allows to a
// transaction that began at start. The least age that was in force at any time since
// then counts.
func (c *catalog) lastCommit(start Timestamp) Timestamp {
	last := start.Add(settingsOf(c.Current).MaxTxnAge)
	if c.inForce(start) {
		return start.Add(settingsOf(*c.Next).MaxTxnAge)
	}
	for _, p := range c.Past {
		if start < p.Until {
			last = min(last, start.Add(milliseconds(p.MaxTxnAgeMs)))
		}
	}
	if c.Next != nil && c.NextFrom != 0 {
		// Before NextFrom it does not bind.
		last = min(last, max(c.NextFrom-1, start.Add(settingsOf(*c.Next).MaxTxnAge)))
	}
	return last
}

// makeCurrent turns Next, which is in force, into Current. Of the past ages it keeps
// those that may still bind a transaction at now.
func (c *catalog) makeCurrent(now Timestamp) {
	c.Past = append(slices.Clone(c.Past), format.PastAge{MaxTxnAgeMs: c.Current.MaxTxnAgeMs, Until: c.NextFrom})
	c.Current, c.Next, c.NextFrom = *c.Next, nil, 0
	age := settingsOf(c.Current).MaxTxnAge
	least := c.Current.MaxTxnAgeMs
	for i := len(c.Past) - 1; i >= 0; i-- {
		if p := c.Past[i]; p.MaxTxnAgeMs >= least || now > p.Until.Add(age) {
			c.Past = slices.Delete(c.Past, i, i+1)
		} else {
			least = p.MaxTxnAgeMs
		}
	}
}

// Settings returns the settings in force, as this process last read them.
func (db *DB) Settings() Settings {
	v := db.known()
	return v.at(v.asOf.Add(db.clock.Now().Sub(v.sentAt)))
}

// Configure changes the stored settings for every process. A field of 0 keeps its
// value. The change takes effect two of the present catalog leases after it was
// published, so that no process can still use the old settings then. A transaction is
// bound by the least MaxTxnAge that was in force at any time since it began.
//
// It returns an error that matches ErrInvalid when the settings do not fit together, or not with
// those that tables have of their own (ConfigureTable), and while another change has yet to take effect; call it again afterwards. Asking for
// what holds once that change has taken effect is no error. After any other error the change may or may not
// take effect, or it may be published and wait until another call gives it its time;
// call Configure again.
func (db *DB) Configure(ctx context.Context, s Settings) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	// What is asked for is checked before it is rounded.
	if err := s.representable(); err != nil {
		return called("Configure", err)
	}
	err := db.changeSettings(ctx, func(now format.Settings) format.Settings {
		return storeSettings(fill(s, settingsOf(now)), now.Tables)
	})
	if err != nil {
		return fmt.Errorf("percolator: Configure: %w", err)
	}
	return nil
}

// changeSettings changes the stored settings to what change makes of those in force, which it may
// not edit. The new ones are not in force yet when it returns.
func (db *DB) changeSettings(ctx context.Context, change func(now format.Settings) format.Settings) error {
	for {
		announced, err := db.announce(ctx, change)
		if err != nil {
			return err
		}
		// A change without a time may be replaced by another process.
		if stands, err := db.date(ctx, announced); err != nil || stands {
			return err
		}
	}
}

// announce publishes a change of the settings, without its time.
func (db *DB) announce(ctx context.Context, change func(now format.Settings) format.Settings) (next format.Settings, err error) {
	_, err = db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		next = change(*v.stored(v.asOf))
		if err := settingsOf(next).check(); err != nil {
			return false, err
		}
		if err := checkTables(&next); err != nil {
			return false, err
		}
		switch {
		case v.inForce(v.asOf):
			v.makeCurrent(v.asOf)
		case v.Next != nil && v.Next.Same(&next):
			return false, nil
		case v.Next != nil && v.NextFrom != 0:
			// What is asked for may hold under the other change as well.
			if next = change(*v.Next); v.Next.Same(&next) {
				return false, nil
			}
			return false, fmt.Errorf("%w: another change of the settings takes effect at %v; wait until then", ErrInvalid, v.NextFrom)
		}
		if v.Next == nil && v.Current.Same(&next) {
			return false, nil
		}
		to := next
		v.Next = &to
		v.ByTable = v.ByTable || len(next.Tables) > 0
		return true, nil
	})
	return next, err
}

// date gives an announced change its time. stands is false if the catalog has another change in its place.
func (db *DB) date(ctx context.Context, announced format.Settings) (stands bool, err error) {
	_, err = db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		to := &v.Current
		if v.Next != nil {
			to = v.Next
		}
		if stands = to.Same(&announced); !stands || v.Next == nil || v.NextFrom != 0 {
			return false, nil
		}
		// Drawn after the announcement was seen: a view without it was begun before.
		now, err := db.draw(ctx)
		if err != nil {
			return false, err
		}
		lease := settingsOf(v.Current).CatalogLease // twice it may be more than a Duration holds
		v.NextFrom = now.Add(lease).Add(lease) + 1
		v.Next = dateTables(&v.Current, v.Next, v.NextFrom)
		return true, nil
	})
	return stands, err
}

func fill(s, from Settings) Settings {
	if s.MaxTxnAge == 0 {
		s.MaxTxnAge = from.MaxTxnAge
	}
	if s.Retention == 0 {
		s.Retention = from.Retention
	}
	if s.CatalogLease == 0 {
		s.CatalogLease = from.CatalogLease
	}
	return s
}
