package httpd

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	get := func(path string, h http.Handler) { mux.Handle(path, only(h, http.MethodGet, http.MethodHead)) }
	get("/", s.files())
	get("/-/status", http.HandlerFunc(s.statusPage))
	get("/-/status.json", http.HandlerFunc(s.statusJSON))
	get("/-/healthz", http.HandlerFunc(healthz))
	get("/-/bytes/{n}", http.HandlerFunc(s.bytes))
	mux.Handle("/-/echo", only(http.HandlerFunc(s.echo), http.MethodPost))
	mux.Handle("/-/", http.NotFoundHandler())
	return s.counted(mux)
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

func (s *Server) files() http.Handler {
	if s.root != nil {
		return http.FileServerFS(s.root.FS())
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		http.Redirect(w, r, "/-/status", http.StatusFound)
	})
}

func healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "ok\n")
}

// echo sends the body back as it arrives, so it holds one copy buffer whatever the size. A client must read while it
// writes, as curl and net/http do. Over-long bodies get 413; found out only in the middle, a broken connection.
func (s *Server) echo(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > s.cfg.MaxBody {
		w.Header().Set("Connection", "close")
		http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
		return
	}
	size := r.ContentLength
	w.Header().Set("Content-Type", "application/octet-stream")
	if size >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	} else {
		size = s.cfg.MaxBody
	}
	rc := http.NewResponseController(w)
	// Where a transport has neither full duplex nor deadlines to set, it needs neither.
	_ = rc.EnableFullDuplex()
	_ = rc.SetReadDeadline(time.Now().Add(timeFor(size)))
	_ = rc.SetWriteDeadline(time.Now().Add(timeFor(size)))
	n, err := io.Copy(w, http.MaxBytesReader(w, r.Body, s.cfg.MaxBody))
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
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, &pattern{size: n})
}
