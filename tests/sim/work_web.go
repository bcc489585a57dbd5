package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
)

// web runs a server and a client of net/http. Each request has a body and each response another.
func (j *job) web() {
	server := &http.Server{Handler: http.HandlerFunc(j.handle), ConnState: j.accepted,
		ErrorLog: log.New(io.Discard, "", 0)}
	j.serving(func(t *task) error {
		t.sleep(j.plan.Start)
		err := j.requests(t)
		return errors.Join(err, server.Close())
	}, func(ln net.Listener) {
		j.w.spawn(j.name+", server", func(t *task) error {
			t.calls("serve")
			if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	})
}

func (j *job) request() pattern  { return pattern{j.w.table, uint64(j.port) * 7919} }
func (j *job) response() pattern { return pattern{j.w.table, uint64(j.port)*104729 + 1} }

// accepted takes note of a connection that the server has got.
func (j *job) accepted(c net.Conn, state http.ConnState) {
	remote, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || state != http.StateNew {
		return
	}
	s := j.session(remote.Port, false)
	j.mu.Lock()
	defer j.mu.Unlock()
	s.served = true
}

// unknown reports whether the server has never got a connection, the end of whose handshake may
// have been lost to an outage.
func (j *job) unknown(s *session) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return s != nil && !s.served && j.w.handshakeLost(s.begun)
}

// handle answers one request.
func (j *job) handle(w http.ResponseWriter, r *http.Request) {
	w.Header()["Date"] = nil // it has the time of the machine
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if i := j.request().wrong(body, 0); i >= 0 || len(body) != j.plan.Bytes {
		http.Error(w, fmt.Sprintf("a request of %d bytes, wrong at %d", len(body), i), 500)
		return
	}
	b := make([]byte, j.plan.Back)
	j.response().fill(b, 0)
	_, _ = w.Write(b)
}

// requests makes the requests of the work, over one connection while that works.
func (j *job) requests(t *task) error {
	var last atomic.Pointer[session]
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn,
		error) {
		c, err := t.dial(j.plan.Client, j.reach)
		if err == nil {
			s := j.dialled(t, c)
			last.Store(s)
		}
		return c, err
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	body := make([]byte, j.plan.Bytes)
	j.request().fill(body, 0)
	url := "http://" + j.at(j.plan.Server).String() + "/"
	for n, late := 0, 0; n < j.plan.Count; {
		t.calls(fmt.Sprintf("request %d", n))
		err := j.post(client, url, body)
		switch {
		case err == nil:
			n++
			t.sleep(j.plan.Pause)
		case j.unknown(last.Load()) || j.lost(last.Load()) || j.cutOff(j.w.clock.now()) ||
			j.cuts() && late < lateFailures:
			if !j.cutOff(j.w.clock.now()) {
				late++
			}
			transport.CloseIdleConnections()
			t.sleep(dialPause)
		default:
			return fmt.Errorf("request %d: %w", n, err)
		}
	}
	return nil
}

// lost reports whether an end of a connection was killed.
func (j *job) lost(s *session) bool { return s != nil && j.broken(s.port) }

// lateFailures is how many requests may fail after an outage that cut connections off: those that
// began before its end or use a connection from before.
const lateFailures = 2

// post makes one request.
func (j *job) post(client *http.Client, url string, body []byte) error {
	r, err := client.Post(url, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		return err
	}
	b, err := io.ReadAll(r.Body)
	r.Body.Close()
	if i := j.response().wrong(b, 0); err != nil || i >= 0 || len(b) != j.plan.Back ||
		r.StatusCode != http.StatusOK {
		return fmt.Errorf("response %s, %d bytes, wrong at %d: %.200q, %v", r.Status, len(b), i, b,
			err)
	}
	return nil
}
