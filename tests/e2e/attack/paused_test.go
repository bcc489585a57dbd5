//go:build linux

package attack

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// longLived is the number of connections that wait for an answer through a pause.
const longLived = 16

// afterPause is the most that such an answer may take after the pause, in addition to the length of
// the pause: TCP's retransmission timeout doubles each time it expires.
const afterPause = 10 * time.Second

// TestPaused: the switch pauses the server's port, under load. Connections survive, and the server
// does not close the NIC. LONG=1 makes the pause 60 s.
func TestPaused(t *testing.T) {
	for _, tt := range []struct{ name, order string }{
		{"port paused", "pause 0 0"}, {"no link, sends held", "unlink 0 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, order := newFaulty(t, 1)
			request := "GET /page.txt HTTP/1.1\r\nHost: server\r\n\r\n"
			conns := w.hold(longLived, server4+":80", request, nil)
			readers := make([]*bufio.Reader, len(conns))
			for i, c := range conns {
				readers[i] = bufio.NewReader(c)
				must(t, answered(c, readers[i], patience))
			}
			r := w.under(tt.name, w.browsers(), func(done <-chan struct{}) {
				order("%s", tt.order)
				for _, c := range conns {
					_, err := io.WriteString(c, request)
					must(t, err)
				}
				<-done
				order("none")
			})
			survived := 0
			for i, c := range conns {
				if err := answered(c, readers[i], *attackTime+afterPause); err != nil {
					t.Errorf("connection %d: %v", i, err)
					continue
				}
				survived++
			}
			if len(conns) != longLived || survived != longLived {
				t.Errorf("%d of %d connections survived", survived, longLived)
			}
			r.during = -1 // no frame leaves
			r.note = fmt.Sprintf("%v; %d connections with an answer on its way survived",
				*attackTime, survived)
			w.judge(r)
		})
	}
}

// answered reads the answer to a request that was sent on c.
func answered(c net.Conn, r *bufio.Reader, limit time.Duration) error {
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && string(body) != page {
		err = fmt.Errorf("status %s, %d bytes", resp.Status, len(body))
	}
	return err
}
