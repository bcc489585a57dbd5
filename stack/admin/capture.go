package admin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/rdma-netstack/rdma-netstack/link/capture"
)

// serveCapture streams a capture until the client goes, or, with POST, the request's body ends.
func (h *handler) serveCapture(w http.ResponseWriter, r *http.Request) {
	opts, limit, err := captureOptions(r.URL.Query())
	if err == nil {
		err = opts.Validate()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer h.captures.begin()()
	out := &flushed{Writer: w, control: http.NewResponseController(w), header: w.Header()}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if r.Method == http.MethodPost {
		out.control.EnableFullDuplex() // HTTP/1 can
		go func() {
			defer cancel()
			io.Copy(io.Discard, r.Body)
		}()
	}
	if err := h.Stack.Capture(ctx, out, opts, limit); err != nil && !out.began {
		http.Error(w, err.Error(), http.StatusConflict)
	}
}

// flushed sends what is written at once.
type flushed struct {
	io.Writer
	control *http.ResponseController
	header  http.Header
	began   bool
}

func (f *flushed) Write(b []byte) (int, error) {
	if !f.began {
		f.header.Set("Content-Type", "application/x-pcapng")
		f.header.Set("Cache-Control", "no-store")
		f.began = true
	}
	n, err := f.Writer.Write(b)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}

// captureOptions reads the parameters of /capture.
func captureOptions(q url.Values) (o capture.Options, limit int, err error) {
	o.Filter = q.Get("filter")
	number := func(name string) (n int) {
		if text := q.Get(name); text != "" && err == nil {
			if n, err = strconv.Atoi(text); err != nil || n < 0 {
				err = fmt.Errorf("%s=%s: want a number that is not negative", name, text)
			}
		}
		return n
	}
	o.Snaplen, o.Buffer, limit = number("snaplen"), number("buffer"), number("count")
	for _, text := range q["queue"] {
		n, wrong := strconv.Atoi(text)
		if wrong != nil || n < 0 {
			return o, 0, fmt.Errorf("queue=%s: want the number of a queue", text)
		}
		o.Queues = append(o.Queues, n)
	}
	switch d := q.Get("direction"); d {
	case "", "inout":
	case "in":
		o.Direction = capture.In
	case "out":
		o.Direction = capture.Out
	default:
		return o, 0, fmt.Errorf("direction=%s: want in, out or inout", d)
	}
	o.Wire, o.NICTime = q.Has("wire"), q.Get("time") == "nic"
	return o, limit, err
}
