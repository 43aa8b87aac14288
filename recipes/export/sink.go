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

	"github.com/percolate-go/percolate/percolator"
)

// ErrSuperseded is for sinks: they return an error that matches it for items of a lower epoch than they have seen for the key. The exporter then
// leaves the key to its successor, which is no failure of the item. If it finds that there is no successor, the run fails, and is parked after its
// attempts, also with Options.Skip.
var ErrSuperseded = errors.New("export: another exporter has claimed the key")

// Sink takes items.
type Sink interface {
	// Send takes items of one key, in their order, and returns how many of them it has taken, from the first one on. Those are removed from the
	// outbox, whatever the error. If fewer were taken than given and err is nil, the rest is sent at once, in another call; none and nil is
	// a failure, and so is a panic. ctx ends after Options.Timeout. Send is called concurrently, for different keys. Errors are stored, in parked runs
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
//	{"key": "ann", "epoch": 7, "items": [{"commit": 5, "index": 0, "payload": "aGk="}]}
//
// The payloads are in base64. The server answers with status 200 and {"sent": 1}, how many items it has taken; or with another status from 200 to
// 299 if it has taken all. With 409 (Conflict) it says that it has seen a higher epoch of the key. Everything else is a failure, also a redirection
// that the client follows with a GET (301, 302, 303), since the items do not go with it.
type HTTP struct {
	// URL is where to post.
	URL string
	// Client is http.DefaultClient if it is nil. Its Transport may add what the server wants to see, such as a token.
	Client *http.Client
}

type jsonItem struct {
	Commit  percolator.Timestamp `json:"commit"`
	Index   int                  `json:"index"`
	Payload []byte               `json:"payload"`
}

type jsonBatch struct {
	Key   string     `json:"key"`
	Epoch uint64     `json:"epoch"`
	Items []jsonItem `json:"items"`
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
	body, err := json.Marshal(batch)
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
		return 0, fmt.Errorf("export: HTTP: the server answered %s", response.Status)
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
