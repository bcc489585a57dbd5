package httpd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (s *Server) newRoutes() http.Handler {
	mux := http.NewServeMux()
	get := func(path string, h http.Handler) {
		mux.Handle(path,
			onlyMethods(h, http.MethodGet, http.MethodHead))
	}
	get("/", s.servePages())
	get("/-/healthz", http.HandlerFunc(s.serveHealth))
	if s.cfg.DebugEndpoints {
		get("/-/status", http.HandlerFunc(s.statusPage))
		get("/-/status.json", http.HandlerFunc(s.statusJSON))
		get("/-/bytes/{n}", http.HandlerFunc(s.serveBytes))
		mux.Handle("/-/echo", onlyMethods(http.HandlerFunc(s.serveEcho), http.MethodPost))
	}
	mux.Handle("/-/", http.NotFoundHandler())
	return s.countRequests(s.unreadBodies(mux))
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

// onlyMethods answers 405 to methods other than those allowed.
func onlyMethods(h http.Handler, allowed ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(allowed, r.Method) {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// serveEcho sends the body back as it arrives, so it holds one copy buffer for any size. A client
// must read while it writes, as curl and net/http do. A body that is too long gets 413, or a broken
// connection if that shows only after the answer has begun.
func (s *Server) serveEcho(w http.ResponseWriter, r *http.Request) {
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

func (s *Server) serveBytes(w http.ResponseWriter, r *http.Request) {
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

// FillPattern writes into p the bytes of /-/bytes at offset off: the little-endian 64-bit word
// number w (from 0) is (w+1)*0x9e3779b97f4a7c15, so that lost, duplicated, moved or swapped bytes
// are detected.
func FillPattern(p []byte, off int64) {
	var word [8]byte
	for len(p) > 0 {
		w := uint64(off)/8 + 1
		skip := int(uint64(off) % 8)
		if skip == 0 && len(p) >= 8 {
			n := len(p) &^ 7
			for i := 0; i < n; i += 8 {
				binary.LittleEndian.PutUint64(p[i:], w*0x9e3779b97f4a7c15)
				w++
			}
			p, off = p[n:], off+int64(n)
			continue
		}
		binary.LittleEndian.PutUint64(word[:], w*0x9e3779b97f4a7c15)
		n := copy(p, word[skip:])
		p, off = p[n:], off+int64(n)
	}
}

// pattern reads and seeks in the first size bytes of the pattern; one goroutine's.
type pattern struct{ size, off int64 }

func (p *pattern) Read(b []byte) (int, error) {
	if p.off >= p.size {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), p.size-p.off)]
	FillPattern(b, p.off)
	p.off += int64(len(b))
	return len(b), nil
}

func (p *pattern) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += p.off
	case io.SeekEnd:
		offset += p.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the start of the pattern")
	}
	p.off = offset
	return offset, nil
}
