package backup

import "fmt"

// What lasts when the power fails.

// syncEvery is after how many bytes a file is synced, so how much is written again after an error of the disk.
const syncEvery = 64 << 20

// lastingPlace is an end of a frame up to which the file is known to last.
type lastingPlace struct {
	at   int64
	last sum
}

// sync makes all that is written last. If that fails, the file ends where it was known to last: a system may forget what it could not write,
// show it all the same to who reads the file, and succeed in the next sync. So no later call could tell. After an error the backup ends, and further calls do nothing.
func (w *writer) sync() error {
	if w.out.at == w.lasting.at || w.unsynced {
		return nil
	}
	err := w.file.Sync()
	if err == nil {
		w.lasting = lastingPlace{w.out.at, w.out.last}
		return nil
	}
	err, w.unsynced = w.cannotWrite(err), true
	if cerr := w.rewind(w.lasting.at, w.lasting.last); cerr != nil {
		return fmt.Errorf("%w; but that may not last, and %w: remove it, and begin anew", err, cerr)
	}
	w.void = w.lasting.at == 0
	return err
}

// rewind makes the file end at a frame.
func (w *writer) rewind(at int64, last sum) error {
	if err := w.file.Truncate(at); err != nil {
		return fmt.Errorf("backup: cutting the incomplete file: %w", err)
	}
	if _, err := w.file.Seek(at, 0); err != nil {
		return fmt.Errorf("backup: going to the end of the incomplete file: %w", err)
	}
	w.out.at, w.out.last = at, last
	return nil
}

// cannotWrite says what to do after an error of the file.
func (w *writer) cannotWrite(err error) error {
	return fmt.Errorf("backup: writing the file: %w; what is done so far is in %s: when there is room, back up again to the same path, and it goes on from what is whole there",
		err, w.path+Incomplete)
}
