package main

import (
	"runtime"
	"testing"
)

func TestQueueCount(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []struct {
		text       string
		processors int
		want       int
		isAnError  bool
		marshalsAs string
	}{
		{"auto", 1, 1, false, "auto"}, {"auto", 2, 1, false, "auto"},
		{"auto", 8, 4, false, "auto"}, {"auto", 64, 16, false, "auto"},
		{"3", 64, 3, false, "3"}, {"64", 1, 64, false, "64"},
		{"0", 1, 0, true, ""}, {"65", 1, 0, true, ""}, {"many", 1, 0, true, ""},
	} {
		runtime.GOMAXPROCS(c.processors)
		var q queueCount
		err := q.UnmarshalText([]byte(c.text))
		if (err != nil) != c.isAnError {
			t.Errorf("%s: %v", c.text, err)
		}
		if text, _ := q.MarshalText(); err == nil &&
			(q.number() != c.want || string(text) != c.marshalsAs) {
			t.Errorf("%s on %d processors: %d queues, %s", c.text, c.processors, q.number(), text)
		}
	}
}
