package httpd

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// Counters is a snapshot of what the server has done since New.
type Counters struct {
	Requests    uint64           `json:"requests"`    // begun
	InFlight    int64            `json:"in_flight"`   // begun and not ended
	Connections int64            `json:"connections"` // open now
	Accepted    uint64           `json:"accepted"`    // connections ever
	BytesIn     int64            `json:"bytes_in"`    // body bytes taken by /-/echo
	BytesOut    int64            `json:"bytes_out"`   // body bytes written
	Answers     map[string]int64 `json:"answers"`     // by class: "2xx" ...
	UptimeSec   float64          `json:"uptime_seconds"`
}

type counters struct {
	requests, accepted                atomic.Uint64
	inFlight, open, bytesIn, bytesOut atomic.Int64
	class                             [6]atomic.Int64 // by first digit of the status
}

// Counters may be called at any time.
func (s *Server) Counters() Counters {
	c := &s.counters
	out := Counters{
		Requests: c.requests.Load(), InFlight: c.inFlight.Load(), Connections: c.open.Load(), Accepted: c.accepted.Load(),
		BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(), Answers: map[string]int64{},
		UptimeSec: time.Since(s.started).Round(time.Millisecond).Seconds(),
	}
	for i := 1; i < len(c.class); i++ {
		if n := c.class[i].Load(); n > 0 {
			out.Answers[strconv.Itoa(i)+"xx"] = n
		}
	}
	return out
}

// conn is the http.Server's ConnState hook.
func (c *counters) conn(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		c.accepted.Add(1)
		c.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		c.open.Add(-1)
	}
}

func (s *Server) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &s.counters
		c.requests.Add(1)
		c.inFlight.Add(1)
		rec := recorder{ResponseWriter: w, status: http.StatusOK}
		defer func() { // also when a handler aborts
			c.inFlight.Add(-1)
			c.bytesOut.Add(rec.written)
			c.class[min(rec.status/100, 5)].Add(1)
		}()
		h.ServeHTTP(&rec, r)
	})
}

// recorder sees the status and size of an answer, and gives large answers the time their size needs.
type recorder struct {
	http.ResponseWriter
	status  int
	written int64
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	r.status = status
	if n, err := strconv.ParseInt(r.Header().Get("Content-Length"), 10, 64); err == nil && n >= slowestRate {
		_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(timeFor(n)))
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	n, err := r.ResponseWriter.Write(p)
	r.written += int64(n)
	return n, err
}

// ReadFrom keeps the road open for connections that can send a file without copying it.
func (r *recorder) ReadFrom(src io.Reader) (int64, error) {
	n, err := io.Copy(r.ResponseWriter, src)
	r.written += n
	return n, err
}
