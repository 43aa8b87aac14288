package format

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Catalog is what every process must agree on: JSON behind the version byte. An older
// program that reads and writes the catalog drops fields that it does not know, so a new
// field needs a new CatalogVersion.
type Catalog struct {
	Oracle   string    `json:"oracle"` // "" is the store's own
	Current  Settings  `json:"current"`
	Next     *Settings `json:"next,omitempty"`
	NextFrom Timestamp `json:"next_from,omitempty"` // when Next takes effect; 0: not known yet
	Past     []PastAge `json:"past,omitempty"`      // the oldest first, each less than the next and Current's
	// ByTable tells that tables have, or once had, settings of their own. Then some may have a safe
	// point of their own, which programs of version 2 do not know: so the catalog is of version 3.
	ByTable bool `json:"by_table,omitempty"`
	// Changes tells that some observer has, or once had, OldValues: so the catalog is of version 4.
	Changes bool `json:"changes,omitempty"`
	// Controlled tells that a hold was placed or an observer paused once. Programs of version 3 know
	// neither, so the catalog is of version 4.
	Controlled bool `json:"controlled,omitempty"`
	// Hinted tells that every process hints its garbage, and that its session says what it has resolved. Programs of
	// version 4 do neither, so the catalog is of version 5.
	Hinted bool `json:"hinted,omitempty"`
	// HintsFrom is a timestamp above which every commit is of a program that goes by Hinted. 0 means
	// that it is not known yet.
	HintsFrom Timestamp `json:"hints_from,omitempty"`
	// Timers tells that a transaction has set a timer, or was about to. Programs of version 5 would clear what tells
	// of one, so the catalog is of version 6.
	Timers bool `json:"timers,omitempty"`
	// TimersFrom is a timestamp from which on nobody goes by a catalog without Timers. 0 means that it is not known yet.
	TimersFrom Timestamp `json:"timers_from,omitempty"`
	// Indexed tells that an index was defined once. Programs of version 6 would write its column without upkeep,
	// so the catalog is of version 7.
	Indexed bool `json:"indexed,omitempty"`
	// Replays tells that an observer was replayed, or was about to be. Programs of version 6 cannot read the requests
	// and may clear what tells of them, so the catalog is of version 7.
	Replays bool `json:"replays,omitempty"`
	// ReplaysFrom is a timestamp from which on nobody goes by a catalog without Replays. 0 means that it is not known yet.
	ReplaysFrom Timestamp `json:"replays_from,omitempty"`
	// RowDeletes tells that a transaction has deleted a row as a whole, or was about to. From then on every writer
	// looks for that, which those of version 6 do not: so the catalog is of version 7.
	RowDeletes bool `json:"row_deletes,omitempty"`
	// RowDeletesFrom is a timestamp from which on nobody goes by a catalog without RowDeletes. 0 means that it is not
	// known yet.
	RowDeletesFrom Timestamp `json:"row_deletes_from,omitempty"`
	// Renamed tells that an observer was renamed once. Programs of version 7 would register it once more under its new
	// name, so the catalog is of version 8.
	Renamed bool `json:"renamed,omitempty"`
	// Erased tells that a range was erased, or was about to be. Programs of version 8 do not know its safe point, so the
	// catalog is of version 9.
	Erased bool `json:"erased,omitempty"`
	// ErasedFrom is a timestamp from which on nobody goes by a catalog without Erased. 0 means that it is not known yet.
	ErasedFrom Timestamp `json:"erased_from,omitempty"`
	// Cascades tells that locks and notifications may say how their changes came about, or soon will. Programs that know
	// only versions below CascadesVersion take them for damaged.
	Cascades bool `json:"cascades,omitempty"`
	// CascadesFrom is a timestamp from which on nobody goes by a catalog without Cascades. 0 means that it is not known yet.
	CascadesFrom Timestamp `json:"cascades_from,omitempty"`

	Observers []Observer `json:"observers,omitempty"`
	Indexes   []Index    `json:"indexes,omitempty"`
}

// Settings are those of the database, in milliseconds.
type Settings struct {
	MaxTxnAgeMs    int64 `json:"max_txn_age_ms"`
	RetentionMs    int64 `json:"retention_ms"`
	CatalogLeaseMs int64 `json:"catalog_lease_ms"`
	// Tables are those with settings of their own, in the order of their names.
	Tables []Table `json:"tables,omitempty"`
}

// MostMs is the longest duration that settings may have, in milliseconds. It keeps them within a
// Duration.
const MostMs = int64(1) << 43

// MaxTables is how many tables may have settings of their own: the catalog holds them all,
// and every process reads it again and again.
const MaxTables = 256

// Table is a table with settings of its own, in milliseconds. 0 means that of the database. None is
// longer than that of the database.
type Table struct {
	Name        []byte `json:"table"` // stored name
	MaxTxnAgeMs int64  `json:"max_txn_age_ms,omitempty"`
	RetentionMs int64  `json:"retention_ms,omitempty"`
	// Since is when this table's retention was last made shorter in proportion to another table's:
	// commits from before may have chosen their primaries otherwise. 0 until the change has a time.
	Since Timestamp `json:"since,omitempty"`
}

// Of returns the settings of a table, by its stored name, with what it takes from the database.
func (s *Settings) Of(table string) Table {
	t := Table{MaxTxnAgeMs: s.MaxTxnAgeMs, RetentionMs: s.RetentionMs}
	own := s.Own(table)
	if own == nil {
		return t
	}
	if t.Since = own.Since; own.MaxTxnAgeMs != 0 {
		t.MaxTxnAgeMs = own.MaxTxnAgeMs
	}
	if own.RetentionMs != 0 {
		t.RetentionMs = own.RetentionMs
	}
	return t
}

// Own returns the entry of a table, or nil.
func (s *Settings) Own(table string) *Table {
	i, ok := slices.BinarySearchFunc(s.Tables, table, func(t Table, name string) int { return cmp.Compare(string(t.Name), name) })
	if !ok {
		return nil
	}
	return &s.Tables[i]
}

// Same tells whether two settings say the same. Times of changes do not count.
func (s *Settings) Same(o *Settings) bool {
	return s.MaxTxnAgeMs == o.MaxTxnAgeMs && s.RetentionMs == o.RetentionMs && s.CatalogLeaseMs == o.CatalogLeaseMs &&
		slices.EqualFunc(s.Tables, o.Tables, func(a, b Table) bool {
			return string(a.Name) == string(b.Name) && a.MaxTxnAgeMs == b.MaxTxnAgeMs && a.RetentionMs == b.RetentionMs
		})
}

// check finds what is never stored.
func (s *Settings) check() error {
	if s.MaxTxnAgeMs > MostMs || s.RetentionMs > MostMs || s.CatalogLeaseMs > MostMs {
		return fmt.Errorf("%w: catalog: settings out of range", ErrCorrupt)
	}
	if s.MaxTxnAgeMs < 1 || s.RetentionMs < 1 || s.CatalogLeaseMs < 1 || s.MaxTxnAgeMs+s.CatalogLeaseMs >= s.RetentionMs {
		return fmt.Errorf("%w: catalog: MaxTxnAge of %d ms, retention of %d ms and catalog lease of %d ms do not fit together",
			ErrCorrupt, s.MaxTxnAgeMs, s.RetentionMs, s.CatalogLeaseMs)
	}
	if len(s.Tables) > MaxTables {
		return fmt.Errorf("%w: catalog: %d tables have settings", ErrCorrupt, len(s.Tables))
	}
	for i := range s.Tables {
		name := string(s.Tables[i].Name)
		if name == "" || Reserved(name) || i > 0 && string(s.Tables[i-1].Name) >= name {
			return fmt.Errorf("%w: catalog: bad table", ErrCorrupt)
		}
		own := s.Of(name)
		if own.MaxTxnAgeMs < 1 || own.RetentionMs < 1 || own.MaxTxnAgeMs > s.MaxTxnAgeMs || own.RetentionMs > s.RetentionMs || own.MaxTxnAgeMs+s.CatalogLeaseMs >= own.RetentionMs {
			return fmt.Errorf("%w: catalog: MaxTxnAge of %d ms and retention of %d ms of a table do not fit", ErrCorrupt, own.MaxTxnAgeMs, own.RetentionMs)
		}
	}
	return nil
}

// PastAge is a MaxTxnAge that was in force until a moment, and is less than those that
// followed it. It still binds the transactions that began before that moment.
type PastAge struct {
	MaxTxnAgeMs int64     `json:"max_txn_age_ms"`
	Until       Timestamp `json:"until"`
}

// Observer is one registered observer. Table and Column are stored names. The names are
// byte slices, because a JSON string cannot hold arbitrary bytes.
type Observer struct {
	// Name is the name of its first registration, under which its records are stored. It never changes.
	Name   []byte `json:"name"`
	Table  []byte `json:"table"`
	Column []byte `json:"column"`
	// Since identifies the registration: a timestamp that was drawn when it was made. An
	// observer that is removed and registered again gets a new one.
	Since Timestamp `json:"since,omitempty"`
	// Swept is the snapshot of the sweep, 0 while it is not done.
	Swept Timestamp `json:"swept,omitempty"`
	// OldValues says that the observer is told what it saw last. Then a collection keeps that.
	OldValues bool `json:"old_values,omitempty"`
	// Paused tells that no worker runs it until it is resumed.
	Paused bool `json:"paused,omitempty"`
	// Called is what it is called now, empty for Name. Aliases are names that it had in between.
	Called  []byte   `json:"called,omitempty"`
	Aliases [][]byte `json:"aliases,omitempty"`
}

// MaxAliases is how many names an observer may have besides the one that it is called by.
const MaxAliases = 16

// Title is what the observer is called.
func (r *Observer) Title() string {
	if len(r.Called) > 0 {
		return string(r.Called)
	}
	return string(r.Name)
}

// Others are its other names, the oldest first.
func (r *Observer) Others() []string {
	var others []string
	if len(r.Called) > 0 {
		others = append(others, string(r.Name))
	}
	for _, a := range r.Aliases {
		others = append(others, string(a))
	}
	return others
}

// Has tells whether the observer has a name, now or from before.
func (r *Observer) Has(name string) bool {
	return r.Title() == name || slices.Contains(r.Others(), name)
}

// Rename has the observer called by a name, and keeps the others.
func (r *Observer) Rename(name string) {
	var aliases [][]byte
	for _, other := range append(r.Others(), r.Title()) {
		if other != name && other != string(r.Name) {
			aliases = append(aliases, []byte(other))
		}
	}
	r.Called, r.Aliases = nil, aliases
	if name != string(r.Name) {
		r.Called = []byte(name)
	}
}

// checkNames finds what is never stored.
func (r *Observer) checkNames() error {
	for _, name := range append(r.Others(), r.Title()) {
		if name == "" || len(name) > MaxObserverName {
			return fmt.Errorf("%w: catalog: an observer has a name of %d bytes", ErrCorrupt, len(name))
		}
	}
	if len(r.Others()) > MaxAliases {
		return fmt.Errorf("%w: catalog: an observer has %d names", ErrCorrupt, 1+len(r.Others()))
	}
	return nil
}

// Is tells whether it is the registration of an observer for a stored column.
func (r Observer) Is(name, table, column string) bool {
	return string(r.Name) == name && string(r.Table) == table && string(r.Column) == column
}

// Encode returns the stored bytes.
func (c *Catalog) Encode() ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the catalog: %w", err)
	}
	return append([]byte{c.version()}, b...), nil
}

// version is the least that a program must know to go by the catalog.
func (c *Catalog) version() byte {
	switch {
	case c.Cascades:
		return CascadesVersion
	case c.Erased:
		return ErasedVersion
	case c.Renamed:
		return RenamedVersion
	case c.Indexed, c.Replays, c.RowDeletes:
		return IndexesVersion
	case c.Timers:
		return TimersVersion
	case c.Hinted:
		return HintedVersion
	case c.Changes, c.Controlled:
		return ControlledVersion
	case c.ByTable:
		return TablesVersion
	}
	return PlainCatalogVersion
}

// RaiseCatalog returns what a stored catalog of version 1 becomes, and whether it was of that one.
// What it does not know it returns as it is, for DecodeCatalog to refuse.
//
// Version 1 has the same fields. Programs of it have no Use, so who raises a catalog puts
// UseOfVersion1 beside it, condemned.
func RaiseCatalog(b []byte) (raised []byte, older bool) {
	if len(b) == 0 || b[0] != 1 {
		return b, false
	}
	return append([]byte{PlainCatalogVersion}, b[1:]...), true
}

// UseOfVersion1 is the column of a Use that stands for all programs that may still go by a
// catalog of version 1.
const UseOfVersion1 = "version 1"

// DecodeCatalog undoes Catalog.Encode. An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeCatalog(b []byte) (Catalog, error) {
	var c Catalog
	if len(b) < 1 {
		return c, fmt.Errorf("%w: catalog: empty", ErrCorrupt)
	}
	if IsRestoring(b) {
		return c, errRestoring(b)
	}
	if b[0] < PlainCatalogVersion || b[0] > CatalogVersion {
		if err := checkVersionIs(CatalogVersion, b, "catalog"); err != nil {
			return c, err
		}
	}
	if err := json.Unmarshal(b[1:], &c); err != nil {
		return c, fmt.Errorf("%w: catalog: %w", ErrCorrupt, err)
	}
	for _, s := range []*Settings{&c.Current, c.Next} {
		if s == nil {
			continue
		}
		if err := s.check(); err != nil {
			return c, err
		}
	}
	if c.version() != b[0] || !c.ByTable && (len(c.Current.Tables) > 0 || c.Next != nil && len(c.Next.Tables) > 0) {
		return c, fmt.Errorf("%w: catalog: version %d does not fit its content", ErrCorrupt, b[0])
	}
	if c.HintsFrom > oracle.Max || c.HintsFrom != 0 && !c.Hinted {
		return c, fmt.Errorf("%w: catalog: hints from %d", ErrCorrupt, uint64(c.HintsFrom))
	}
	if c.TimersFrom > oracle.Max || c.TimersFrom != 0 && !c.Timers {
		return c, fmt.Errorf("%w: catalog: timers from %d", ErrCorrupt, uint64(c.TimersFrom))
	}
	if c.ErasedFrom > oracle.Max || c.ErasedFrom != 0 && !c.Erased {
		return c, fmt.Errorf("%w: catalog: erased ranges from %d", ErrCorrupt, uint64(c.ErasedFrom))
	}
	if max(c.ReplaysFrom, c.RowDeletesFrom) > oracle.Max || c.ReplaysFrom != 0 && !c.Replays || c.RowDeletesFrom != 0 && !c.RowDeletes {
		return c, fmt.Errorf("%w: catalog: replays from %d, deleted rows from %d", ErrCorrupt, uint64(c.ReplaysFrom), uint64(c.RowDeletesFrom))
	}
	if c.CascadesFrom > oracle.Max || c.CascadesFrom != 0 && !c.Cascades {
		return c, fmt.Errorf("%w: catalog: cascades from %d", ErrCorrupt, uint64(c.CascadesFrom))
	}
	for _, p := range c.Past {
		if p.MaxTxnAgeMs < 1 || p.MaxTxnAgeMs > c.Current.MaxTxnAgeMs {
			return c, fmt.Errorf("%w: catalog: bad past settings", ErrCorrupt)
		}
	}
	for _, o := range c.Observers {
		if o.Paused && !c.Controlled {
			return c, fmt.Errorf("%w: catalog: version %d does not fit what it says", ErrCorrupt, b[0])
		}
		if len(o.Name) == 0 || len(o.Name) > MaxObserverName || len(o.Table) == 0 || len(o.Column) == 0 {
			return c, fmt.Errorf("%w: catalog: bad observer", ErrCorrupt)
		}
		if o.OldValues && !c.Changes {
			return c, fmt.Errorf("%w: catalog: version %d does not fit its observers", ErrCorrupt, b[0])
		}
		if !c.Renamed && len(o.Called)+len(o.Aliases) > 0 {
			return c, fmt.Errorf("%w: catalog: version %d does not fit the names of its observers", ErrCorrupt, b[0])
		}
		if err := o.checkNames(); err != nil {
			return c, err
		}
	}
	return c, c.checkIndexes()
}

// TableSafePoints are the safe points of tables with a retention of their own: JSON behind the
// version byte, beside the catalog.
type TableSafePoints struct {
	Tables []TableSafePoint `json:"tables"` // in the order of their names
}

// TableSafePoint says how far a table is collected.
type TableSafePoint struct {
	Name      []byte    `json:"table"` // stored name
	SafePoint Timestamp `json:"safepoint,omitempty"`
	// Clean says that every lock is resolved that a transaction from before it may have left in
	// any table. It counts if it is not less than the table's Since.
	Clean Timestamp `json:"clean,omitempty"`
}

// Encode returns the stored bytes.
func (p *TableSafePoints) Encode() ([]byte, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encoding the safe points of tables: %w", err)
	}
	return append([]byte{Version}, b...), nil
}

// DecodeTableSafePoints undoes TableSafePoints.Encode. An error matches ErrCorrupt or
// rowstore.ErrFormat.
func DecodeTableSafePoints(b []byte) (TableSafePoints, error) {
	var p TableSafePoints
	if err := checkVersion(b, "safe points of tables"); err != nil {
		return p, err
	}
	if err := json.Unmarshal(b[1:], &p); err != nil {
		return p, fmt.Errorf("%w: safe points of tables: %w", ErrCorrupt, err)
	}
	for i := range p.Tables {
		t := &p.Tables[i]
		if len(t.Name) == 0 || t.SafePoint > oracle.Max || t.Clean > oracle.Max || i > 0 && string(p.Tables[i-1].Name) >= string(t.Name) {
			return p, fmt.Errorf("%w: safe points of tables: bad table", ErrCorrupt)
		}
	}
	return p, nil
}
