package httpd

import (
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// Counters holds a snapshot of what the server has done since New.
type Counters struct {
	Requests    uint64 `json:"requests"`    // started
	InFlight    int64  `json:"in_flight"`   // started and not ended
	Connections int64  `json:"connections"` // open now
	Accepted    uint64 `json:"accepted"`    // total connections
	// of these, closed without a request to make room
	Evicted uint64 `json:"evicted"`
	// connections refused: all others had requests
	Refused uint64 `json:"refused"`
	TooSlow uint64 `json:"too_slow"` // connections whose peer missed a deadline
	// connections that a request came for after Shutdown had ended them as they had none
	Unanswered uint64           `json:"unanswered"`
	BytesIn    int64            `json:"bytes_in"`  // body bytes received by /-/echo
	BytesOut   int64            `json:"bytes_out"` // body bytes written
	Answers    map[string]int64 `json:"answers"`   // by class: "2xx" ...
	UptimeSec  float64          `json:"uptime_seconds"`
}

type counters struct {
	requests                    atomic.Uint64
	inFlight, bytesIn, bytesOut atomic.Int64
	class                       [6]atomic.Int64 // by first digit of the status
}

// Counters may be called at any time.
func (s *Server) Counters() Counters {
	c, t := &s.counters, &s.table
	out := Counters{
		Requests: c.requests.Load(), InFlight: c.inFlight.Load(), Connections: int64(t.connCount()),
		Accepted: t.accepted.Load(), Evicted: t.evicted.Load(), Refused: t.refused.Load(),
		TooSlow: t.tooSlow.Load(), Unanswered: t.unanswered.Load(),
		BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(), Answers: map[string]int64{},
		UptimeSec: s.cfg.Clock.Since(s.started).Round(time.Millisecond).Seconds(),
	}
	for i := 1; i < len(c.class); i++ {
		if n := c.class[i].Load(); n > 0 {
			out.Answers[strconv.Itoa(i)+"xx"] = n
		}
	}
	return out
}

func (s *Server) countRequests(h http.Handler) http.Handler {
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

// recorder records the status and size of an answer.
type recorder struct {
	http.ResponseWriter
	status  int
	written int64
}

// Unwrap serves http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	n, err := r.ResponseWriter.Write(p)
	r.written += int64(n)
	return n, err
}

// ReadFrom lets net/http copy with a buffer of its own.
func (r *recorder) ReadFrom(src io.Reader) (int64, error) {
	n, err := io.Copy(r.ResponseWriter, src)
	r.written += n
	return n, err
}
