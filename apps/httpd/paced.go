package httpd

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// paced is a request's body that must arrive at the floor's rate or faster.
type paced struct {
	io.ReadCloser
	rc      *http.ResponseController
	in      budget
	tooSlow *atomic.Uint64
	clock   clock.Clock
}

// Read has the deadline that the progress so far allows. The end of the body has none: a later read
// is net/http's own, for the next request.
func (p *paced) Read(b []byte) (int, error) {
	began := p.clock.Now()
	if err := p.rc.SetReadDeadline(began.Add(p.in.left)); err != nil {
		return 0, err
	}
	n, err := p.ReadCloser.Read(b)
	p.in.waited(p.clock.Since(began), n)
	switch {
	case err == io.EOF:
		_ = p.rc.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.tooSlow.Add(1)
	}
	return n, err
}
