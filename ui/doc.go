// Package ui is a page for people who look after a database of package percolator: observers and what waits for them, parked runs,
// replays, locks and why a cell waits, the history of a cell, processes, and how far garbage collection is.
//
//	page, err := ui.New(db, func(r *http.Request) (ui.Access, error) {
//		user, ok := signedIn(r) // as your program does it
//		if !ok {
//			return ui.Access{}, ui.ErrForbidden
//		}
//		return ui.Access{Who: user.Name, Actions: user.Operator}, nil
//	}, ui.Options{Hosts: []string{"shop.example.org"}})
//	...
//	mux.Handle("/percolator/", page)
//	defer page.Close(ctx)
//
// The command percolator ui serves the page on its own.
//
// # Looking never writes
//
// The page is made by package admin, which reads a bounded number of rows for each view. So it may be refreshed each second, over any
// number of rows. A + behind a number means: at least. A few requests do so at once (Options.Concurrent), so many readers do not
// crowd the database. The script of the page only loads the same page again. Without it
// everything else works.
//
// # Safety
//
// Nobody sees anything without the Authorize function that New demands. The Host header must be one of a list, so that a foreign name that
// resolves to this address gets nothing. Access may allow actions: then each has a page that says what will happen, and a form with
// a secret, which is taken from the page's own origin only. The values of cells are shown only to those who ask for them and may see them. Names, values and errors
// are text, never HTML; a content security policy forbids scripts and styles but the page's own.
package ui
