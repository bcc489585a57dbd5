package stack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestParseResolvConf(t *testing.T) {
	var c resolvConf
	c.parse(`# a comment
nameserver 192.0.2.53
nameserver 2001:db8::53 ; another comment
nameserver nonsense
nameserver
domain old.example
search a.example b.example.
options ndots:2 timeout:3 attempts:5 rotate nonsense: ndots:x
options timeout:99
sortlist 192.0.2.0
`)
	if got := fmt.Sprint(c.servers); got != "[192.0.2.53 2001:db8::53]" {
		t.Errorf("servers %s", got)
	}
	if !slices.Equal(c.search, []string{"a.example", "b.example."}) || c.ndots != 2 ||
		c.timeout != 30*time.Second || c.attempts != 5 {
		t.Errorf("search %v, ndots %d, timeout %v, attempts %d", c.search,
			c.ndots, c.timeout, c.attempts)
	}
	if got := c.lookupLimit(len(c.servers)); got != 300*time.Second {
		t.Errorf("limit %v, want 5 times 30 s for each of 2 servers", got)
	}
	for name, want := range map[string][]string{
		"host":        {"host.a.example.", "host.b.example.", "host."},
		"host.a":      {"host.a.a.example.", "host.a.b.example.", "host.a."},
		"host.a.b":    {"host.a.b.", "host.a.b.a.example.", "host.a.b.b.example."},
		"absolute.x.": {"absolute.x."},
	} {
		if got := c.candidates(name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	c = resolvConf{ndots: 1}
	if got := c.candidates("host"); !slices.Equal(got, []string{"host."}) {
		t.Errorf("without search: %v", got)
	}
}

func FuzzResolvConf(f *testing.F) {
	f.Add("nameserver 192.0.2.53\nsearch a b\noptions ndots:3", "www.example")
	f.Add("options timeout:-1\nsearch .", ".")
	f.Fuzz(func(t *testing.T, text, name string) {
		c := resolvConf{ndots: defaultNdots, timeout: defaultDNSTimeout, attempts: defaultAttempts}
		c.parse(text)
		if c.ndots < 0 || c.ndots > maxNdots || c.timeout < time.Second ||
			c.timeout > maxDNSTimeout || c.attempts < 1 || c.attempts > maxAttempts {
			t.Errorf("ndots %d, timeout %v, attempts %d", c.ndots, c.timeout, c.attempts)
		}
		if len(c.candidates(name)) == 0 {
			t.Error("no candidates")
		}
	})
}

// TestHostResolvConf: resolvers on the machine's loopback cannot be reached from here, those behind
// them can.
func TestHostResolvConf(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	stub, behind, plain := file("nameserver 127.0.0.53\nnameserver ::1\nsearch stub.example\n"),
		file("nameserver 192.0.2.53\nsearch a.example\n"),
		file("nameserver 192.0.2.7\nnameserver 127.0.0.1\n")
	for _, c := range []struct {
		name            string
		files           []string
		servers, search string
	}{
		{"systemd-resolved", []string{stub, behind}, "[192.0.2.53]", "[a.example]"},
		{"plain", []string{plain, behind}, "[192.0.2.7]", "[]"},
		{"only the first", []string{stub, stub + ".not"}, "[]", "[stub.example]"},
		{"none", []string{stub + ".not"}, "[]", "[]"},
	} {
		got := resolvConf{ndots: defaultNdots}.firstUsable(c.files)
		if fmt.Sprint(got.servers) != c.servers || fmt.Sprint(got.search) != c.search ||
			got.ndots != defaultNdots {
			t.Errorf("%s: %v %v, want %s %s", c.name, got.servers, got.search, c.servers, c.search)
		}
	}
}
