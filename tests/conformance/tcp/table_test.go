package tcp

import (
	"fmt"
	"testing"
)

// topics are all rows.
var topics = []struct {
	name string
	rows func() []row
}{
	{"handshake", handshakes}, {"listener", listeners}, {"resend", resends}, {"flight", flights},
	{"sack", selective}, {"window", windows},
	{"close", closes}, {"closing", closing}, {"invalid", invalid},
	{"icmp", messages},
	{"ack", held}, {"merge", merging}, {"fix", fixes},
}

// TestTable plays every row, over IPv4 and IPv6. With -v it tells of each where the behaviour is
// written, and how Linux differs.
func TestTable(t *testing.T) {
	oneProcessor(t)
	for _, topic := range topics {
		t.Run(topic.name, func(t *testing.T) {
			for _, r := range topic.rows() {
				t.Run(r.name, r.test)
			}
		})
	}
}

// test plays a row over each version of IP that it is for.
func (r row) test(t *testing.T) {
	t.Logf("source: %s", r.source)
	if r.linux != "" {
		t.Logf("Linux: %s", r.linux)
	}
	for _, version := range []int{4, 6} {
		if r.only == 0 || r.only == version {
			t.Run(fmt.Sprint("IPv", version), func(t *testing.T) { r.run(t, version == 6) })
		}
	}
}

// TestRows: each row has a name of its own, a source and a script.
func TestRows(t *testing.T) {
	names := map[string]bool{}
	for _, topic := range topics {
		for _, r := range topic.rows() {
			if r.name == "" || r.source == "" || r.script == "" || names[r.name] {
				t.Errorf("%s: %q lacks something, or is there twice", topic.name, r.name)
			}
			names[r.name] = true
		}
	}
}
