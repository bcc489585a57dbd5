package httpd

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	get := func(path string, h http.Handler) {
		mux.Handle(path,
			only(h, http.MethodGet, http.MethodHead))
	}
	get("/", s.pages())
	get("/-/healthz", http.HandlerFunc(s.healthz))
	if s.cfg.DebugEndpoints {
		get("/-/status", http.HandlerFunc(s.statusPage))
		get("/-/status.json", http.HandlerFunc(s.statusJSON))
		get("/-/bytes/{n}", http.HandlerFunc(s.bytes))
		mux.Handle("/-/echo", only(http.HandlerFunc(s.echo), http.MethodPost))
	}
	mux.Handle("/-/", http.NotFoundHandler())
	return s.counted(s.unreadBodies(mux))
}

// unreadBodies bounds the time that net/http spends after the handler on reading the rest of a
// body.
func (s *Server) unreadBodies(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(s.cfg.Clock.Now().Add(bodyTimeout))
		}
		h.ServeHTTP(w, r)
	})
}

// only answers 405 to methods other than those allowed.
func only(h http.Handler, allowed ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(allowed, r.Method) {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// echo sends the body back as it arrives, so it holds one copy buffer for any size. A client must
// read while it writes, as curl and net/http do. A body that is too long gets 413, or a broken
// connection if that shows only after the answer has begun.
func (s *Server) echo(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > s.cfg.MaxBody {
		w.Header().Set("Connection", "close")
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if r.ContentLength >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // a transport without it needs none
	body := &paced{
		ReadCloser: r.Body,
		rc:         rc,
		in:         newBudget(s.cfg.MinRate, s.cfg.Grace),
		tooSlow:    &s.table.tooSlow,
		clock:      s.cfg.Clock,
	}
	n, err := io.Copy(w, http.MaxBytesReader(w, body, s.cfg.MaxBody))
	s.counters.bytesIn.Add(n)
	var tooLong *http.MaxBytesError
	switch {
	case err == nil:
	case errors.As(err, &tooLong) && n == 0:
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
	default:
		panic(http.ErrAbortHandler)
	}
}

func (s *Server) bytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	if err != nil || n < 0 {
		http.Error(w, "want a count of bytes: /-/bytes/1024", http.StatusBadRequest)
		return
	}
	if n > s.cfg.MaxBody {
		http.Error(w, fmt.Sprintf("at most %d bytes are sent", s.cfg.MaxBody),
			http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, &pattern{size: n})
}
