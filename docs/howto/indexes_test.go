package howto

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/index"
	"github.com/percolate-go/percolate/typed"
)

type member struct{ Mail, Town string }

var members = typed.Column[member]{Table: "member", Name: "profile", Codec: typed.JSON[member]{}}

// openMembers makes the indexes of members. Every program that writes members calls it before it does.
func openMembers(db *percolator.DB) (byMail, byTown *index.Index[member], err error) {
	byMail, err = index.New(db, "member by mail", members, func(_ string, m member) ([]keys.Key, error) {
		return []keys.Key{keys.Key("").Text(m.Mail)}, nil
	}, index.Options{Unique: true})
	if err != nil {
		return nil, nil, err
	}
	byTown, err = index.New(db, "member by town", members, func(_ string, m member) ([]keys.Key, error) {
		if m.Town == "" {
			return nil, nil // not in the index
		}
		return []keys.Key{keys.Key("").Text(m.Town)}, nil
	}, index.Options{})
	return byMail, byTown, err
}

// join adds a member, unless somebody else has the address.
func join(ctx context.Context, db *percolator.DB, id string, m member) (taken bool, err error) {
	err = db.Update(ctx, func(tx *percolator.Txn) error { return members.Set(ctx, tx, id, m) })
	if errors.Is(err, index.ErrNotUnique) {
		return true, nil
	}
	return false, err
}

// findMember returns the member with an address.
func findMember(ctx context.Context, db *percolator.DB, byMail *index.Index[member], mail string) (m member, err error) {
	err = db.View(ctx, func(tx *percolator.Txn) error {
		id, err := byMail.Find(ctx, tx, keys.Key("").Text(mail))
		if err != nil {
			return err // percolator.ErrNotFound: nobody has it
		}
		m, err = members.Get(ctx, tx, id)
		return err
	})
	return m, err
}

// openByTown makes an index of the members' towns. A worker must run byTown.Observer().
func openByTown(db *percolator.DB) (*index.Observed[member], error) {
	return index.NewObserved(db, "members of a town", members, func(_ string, m member) ([]keys.Key, error) {
		return []keys.Key{keys.Key("").Text(m.Town)}, nil
	}, index.ObservedOptions{})
}

// membersOf returns the members in a town. Each of them does live there; one who moved a moment ago may be missing.
func membersOf(ctx context.Context, db *percolator.DB, byTown *index.Observed[member], town string) (all []member, err error) {
	err = db.View(ctx, func(tx *percolator.Txn) error {
		all = nil // the function may be called again
		for row, err := range byTown.Lookup(ctx, tx, keys.Key("").Text(town)) {
			if err != nil {
				return err
			}
			all = append(all, row.Value)
		}
		return nil
	})
	return all, err
}

func TestObservedIndex(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	byTown, err := openByTown(db)
	require.NoError(t, err)
	w := startWorker(t, db, byTown.Observer())
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return members.Set(ctx, tx, "1", member{"ann@example.org", "Rome"}) }))
	require.NoError(t, byTown.Build(ctx, index.Pace{}))
	all, err := membersOf(ctx, db, byTown, "Rome")
	require.NoError(t, err)
	require.Equal(t, []member{{"ann@example.org", "Rome"}}, all)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return members.Set(ctx, tx, "1", member{"ann@example.org", "Oslo"}) }))
	all, err = membersOf(ctx, db, byTown, "Rome")
	require.NoError(t, err)
	require.Empty(t, all)
	require.NoError(t, w.WaitIdle(ctx))
	all, err = membersOf(ctx, db, byTown, "Oslo")
	require.NoError(t, err)
	require.Len(t, all, 1)
}

func TestIndexes(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	byMail, byTown, err := openMembers(db)
	require.NoError(t, err)
	taken, err := join(ctx, db, "1", member{"ann@example.org", "Rome"})
	require.NoError(t, err)
	require.False(t, taken)
	for _, ix := range []*index.Index[member]{byMail, byTown} {
		_, err := ix.Build(ctx, index.Pace{})
		require.NoError(t, err)
	}
	taken, err = join(ctx, db, "2", member{"ann@example.org", "Oslo"})
	require.NoError(t, err)
	require.True(t, taken)
	taken, err = join(ctx, db, "2", member{"bob@example.org", "Rome"})
	require.NoError(t, err)
	require.False(t, taken)
	m, err := findMember(ctx, db, byMail, "bob@example.org")
	require.NoError(t, err)
	require.Equal(t, "Rome", m.Town)
	_, err = findMember(ctx, db, byMail, "eve@example.org")
	require.ErrorIs(t, err, percolator.ErrNotFound)
	var ids []string
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for id, err := range byTown.Lookup(ctx, tx, keys.Key("").Text("Rome")) {
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	}))
	require.Equal(t, []string{"1", "2"}, ids)
	r, err := byMail.Check(ctx, index.Pace{})
	require.NoError(t, err)
	require.True(t, r.Matches())
}
