package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/percolate-go/percolate/percolator"
)

// ErrSuperseded is for sinks: they return an error that matches it for items of a lower epoch than they have seen for the key. The exporter then
// leaves the key to its successor, which is no failure of the item. If it finds that there is no successor, the run fails, and is parked after its
// attempts, also with Options.Skip.
var ErrSuperseded = errors.New("export: another exporter has claimed the key")

// Later is for sinks that cannot take items now, and say when they can: one that is overloaded, say. The error that it returns tells the exporter to leave
// the key alone for d, from a tenth of a second to an hour, also if more items of the key come (Outbox.Resume ends that sooner). This is no failure of the item, so it counts no attempt. err, which may be
// nil, is why; the error matches it, and may be wrapped.
func Later(d time.Duration, err error) error {
	return &laterError{after: min(max(d, leastLater), mostLater), err: err}
}

const (
	leastLater = 100 * time.Millisecond
	mostLater  = time.Hour
)

type laterError struct {
	after time.Duration
	err   error
}

func (e *laterError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("export: the sink asks to be called again after %v", e.after)
	}
	return fmt.Sprintf("export: the sink asks to be called again after %v: %v", e.after, e.err)
}

func (e *laterError) Unwrap() error { return e.err }

// Sink takes items.
type Sink interface {
	// Send takes items of one key, in their order, and returns how many of them it has taken, from the first one on. Those are removed from the
	// outbox, whatever the error, unless another exporter has claimed the key meanwhile, which sends them again. They may come again, too, if the process dies or the store is away. If fewer were taken than given and err is nil, the rest is sent at once, in another call; none and nil is
	// a failure, and so is a panic. After a failure with several items nobody asks which of them was why, or whether all of them were too much together: the first one that was not taken is sent again at once, alone,
	// then two, four, and so on, up to Options.Batch. If it fails alone too, that is an attempt of the item, after which it is tried alone again. So a sink that takes all items of a call or none has a bad one set aside, and no other; it is called more often meanwhile. A number that cannot be is a failure of the run, which is parked after its attempts, also with Options.Skip. Later says when to try again, also if all were taken, and ErrSuperseded that another exporter has the key. ctx ends after Options.Timeout, and Send must return then: until it does it keeps a place of the worker, whose Run does
	// not end before. Send is called concurrently, for different keys. Errors are stored, in parked runs
	// and dead letters, so they should hold no secrets.
	Send(ctx context.Context, key string, items []Item) (sent int, err error)
}

// SinkFunc is a function as a Sink.
type SinkFunc func(ctx context.Context, key string, items []Item) (sent int, err error)

// Send calls the function.
func (f SinkFunc) Send(ctx context.Context, key string, items []Item) (sent int, err error) {
	return f(ctx, key, items)
}

// HTTP is a Sink that posts items as JSON, a request for each batch:
//
//	{"key": "ann", "epoch": "7", "items": [{"commit": "5", "index": 0, "payload": "aGk="}]}
//
// Epochs and commits are decimal numbers of up to 19 digits in text, because many readers of JSON keep fewer digits of a number: compare them as integers of 64 bits. The payloads are in base64. A key that is no UTF-8 does not come as "key", which is missing then, but in base64:
//
//	{"keyBase64": "/w==", "epoch": "7", "items": [...]}
//
// A server that expects only text should refuse batches without "key", and not take them for those of an empty key, which has "key": "". The server answers with status 200 and {"sent": 1}, how many items it has taken; or with another status from 200 to
// 299 if it has taken all. With 409 (Conflict) it says that it has seen a higher epoch of the key. With 429 (Too Many Requests) or 503 (Service Unavailable) and a
// Retry-After it says when to come again (Later). Everything else is a failure, also a redirection
// that the client follows with a GET (301, 302, 303), since the items do not go with it.
type HTTP struct {
	// URL is where to post.
	URL string
	// Client is http.DefaultClient if it is nil. Its Transport may add what the server wants to see, such as a token.
	Client *http.Client
}

type jsonItem struct {
	Commit  percolator.Timestamp `json:"commit,string"`
	Index   int                  `json:"index"`
	Payload []byte               `json:"payload"`
}

type jsonBatch struct {
	Key   string     `json:"key"`
	Epoch uint64     `json:"epoch,string"`
	Items []jsonItem `json:"items"`
}

// jsonBytesBatch is a batch whose key is no UTF-8. As a JSON text, different keys would become one.
type jsonBytesBatch struct {
	Key   []byte     `json:"keyBase64"`
	Epoch uint64     `json:"epoch,string"`
	Items []jsonItem `json:"items"`
}

func (b *jsonBatch) encode() ([]byte, error) {
	if !utf8.ValidString(b.Key) {
		return json.Marshal(jsonBytesBatch{[]byte(b.Key), b.Epoch, b.Items})
	}
	return json.Marshal(b)
}

// mostAnswer bounds what is read of an answer.
const mostAnswer = 1 << 16

// Send implements Sink.
func (h HTTP) Send(ctx context.Context, key string, items []Item) (sent int, err error) {
	batch := jsonBatch{Key: key, Items: make([]jsonItem, len(items))}
	for i, item := range items {
		batch.Epoch = item.Epoch
		batch.Items[i] = jsonItem{item.Commit, item.Index, item.Payload}
	}
	body, err := batch.encode()
	if err != nil {
		return 0, fmt.Errorf("export: HTTP: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("export: HTTP: the URL is not one that can be posted to") // it may hold a password
	}
	request.Header.Set("Content-Type", "application/json")
	client := h.Client
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		if of := (*url.Error)(nil); errors.As(err, &of) {
			err = of.Err // without the URL, which may hold a token
		}
		return 0, fmt.Errorf("export: HTTP: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, mostAnswer))
	switch status := response.StatusCode; {
	case response.Request.Method != http.MethodPost:
		// A client follows some redirections with a GET, and without the items.
		return 0, errors.New("export: HTTP: the server redirected the request to where nothing can be posted")
	case status == http.StatusConflict:
		return 0, ErrSuperseded
	case status < 200 || status > 299:
		err := fmt.Errorf("export: HTTP: the server answered %s", response.Status)
		if d, said := retryAfter(response); said {
			err = Later(d, err)
		}
		return 0, err
	case err != nil:
		return 0, fmt.Errorf("export: HTTP: reading the answer: %w", err)
	case status != http.StatusOK:
		return len(items), nil
	}
	var said struct {
		Sent *int `json:"sent"`
	}
	if err := json.Unmarshal(answer, &said); err != nil || said.Sent == nil {
		return 0, errors.New(`export: HTTP: the server answered 200 without {"sent": n}`)
	}
	return *said.Sent, nil
}

// retryAfter tells when the server wants to be asked again, if it says so: a number of seconds, or a time.
func retryAfter(response *http.Response) (d time.Duration, said bool) {
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusServiceUnavailable {
		return 0, false
	}
	text := response.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(text)
	return time.Until(at), err == nil
}
