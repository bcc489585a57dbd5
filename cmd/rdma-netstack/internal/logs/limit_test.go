package logs

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLimit: a message that comes too often is left out and counted, others are not held up by it,
// and loggers made of one share its counts.
func TestLimit(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	log := slog.New(Limit(slog.NewTextHandler(&out, nil), func() time.Time { return now }))
	for range 15 {
		log.Warn("often", "queue", 1)
		log.With("device", "x").WithGroup("g").Warn("often")
	}
	log.Warn("once")
	if n := strings.Count(out.String(), "msg=often"); n != Burst {
		t.Errorf("%d lines, want %d", n, Burst)
	}
	if !strings.Contains(out.String(), "msg=once") || strings.Contains(out.String(), LeftOut) {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	now = now.Add(Period)
	log.Warn("often")
	log.Warn("often")
	if got := out.String(); strings.Count(got, "msg=often") != 2 ||
		strings.Count(got, "left_out=20") != 1 {
		t.Errorf("after the period:\n%s", got)
	}
	log.Debug("often")
	for i := range 10 * maxMessages {
		log.Info(fmt.Sprint("message ", i))
	}
	if !strings.Contains(out.String(), fmt.Sprint("message ", 10*maxMessages-1)) {
		t.Error("the last of many messages is not there")
	}
}

// TestLimitMemory: messages that are all different do not fill the memory.
func TestLimitMemory(t *testing.T) {
	c := &counts{now: time.Now, of: map[string]*count{}}
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 1000 {
				if write, _ := c.take(fmt.Sprint(g, " ", i)); !write {
					t.Error("a new message is left out")
				}
			}
		})
	}
	all.Wait()
	if len(c.of) > maxMessages {
		t.Errorf("%d messages", len(c.of))
	}
}
