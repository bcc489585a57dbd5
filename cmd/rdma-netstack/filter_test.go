package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

// TestFilterCommands changes the filter of a server of this process, and says what is wrong.
func TestFilterCommands(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := file("first", "chain input { policy drop; tcp dport 80 accept; }\n")
	second := file("second", "chain output { ip daddr 192.0.2.7 drop; }\n")
	bad := file("bad", "chain input {\ntcp dport 80 reject\n}\n")
	f := serveFlagsOf(t, "--device", "sim", "--sim-wire", "none", "--address", "192.0.2.10/24",
		"--filter", first)
	s, err := openSlice(t.Context(), f, warningLog(os.Stderr))
	if err != nil {
		t.Fatal(err)
	}
	defer s.closeAfter(nil)
	pid := []string{"--pid", number(os.Getpid())}
	for _, c := range []struct {
		line   string
		code   int
		stdout string // its words
		stderr string
	}{
		{"filter show", exitDone, "chain input rule 1 0 packets tcp dport 80 accept " +
			"policy 0 packets drop", ""},
		{"filter deny 203.0.113.9 --for 1h", exitDone,
			"deny 0 packets 203.0.113.9/32 until ", ""},
		{"filter allow 203.0.113.0/24", exitDone, "allow 0 packets 203.0.113.0/24", ""},
		{"filter load " + second, exitDone,
			"chain output rule 1 0 packets ip daddr 192.0.2.7 drop", ""},
		{"status filter", exitDone, "203.0.113.9/32", ""},
		{"filter show --limit 1", exitDone, "allow 0 packets 203.0.113.0/24 1 to 1 of 2 " +
			"prefixes, the newest first; --offset 1 has more, --limit 0 all chain output", ""},
		{"filter show --offset 1 --limit 7", exitDone, "203.0.113.9/32", ""},
		{"filter show --limit -1", exitUsage, "", "want no less than 0"},
		{"filter show --json --limit 1", exitUsage, "", "--json prints all"},
		{"filter forget 203.0.113.9", exitDone, "allow 0 packets 203.0.113.0/24", ""},
		{"filter forget 203.0.113.9", exitFailed, "", "is neither denied nor allowed"},
		{"filter load " + bad, exitFailed, "", `line 2: "reject": nothing is answered here`},
		{"filter load", exitUsage, "", "want one FILE"},
		{"filter deny 192.0.2", exitUsage, "", "want an address or a prefix"},
		{"filter deny", exitUsage, "", "want one PREFIX"},
		{"filter drop", exitUsage, "", "drop"},
	} {
		stdout, stderr, code := look(append(strings.Fields(c.line), pid...)...)
		words := strings.Join(strings.Fields(stdout), " ")
		if code != c.code || !strings.Contains(words, c.stdout) ||
			!strings.Contains(stderr, c.stderr) || (stderr == "") != (c.stderr == "") {
			t.Errorf("%s: code %d, %q\n%q", c.line, code, stderr, stdout)
		}
	}
	stdout, _, _ := look(append([]string{"filter", "show", "--json"}, pid...)...)
	var status stack.FilterStatus
	if err := json.Unmarshal([]byte(stdout), &status); err != nil || status.Loads != 2 ||
		len(status.Entries) != 1 || len(status.Chains) != 1 {
		t.Errorf("filter show --json: %v, %s", err, stdout)
	}
	checkFilterPanel(t, s.stack)
	if out, _, code := look("filter", "check", first); code != exitDone ||
		out != "1 rules of input, policy drop; 0 of output, policy accept\n" {
		t.Errorf("check: code %d, %q", code, out)
	}
	if _, stderr, code := look("filter", "check", bad); code != exitFailed ||
		!strings.Contains(stderr, bad+": line 2: ") {
		t.Errorf("check of a bad list: code %d, %q", code, stderr)
	}
	f.filter = bad
	if _, err := openSlice(t.Context(), f, warningLog(os.Stderr)); err == nil ||
		!strings.Contains(err.Error(), "--filter "+bad+": line 2: ") {
		t.Errorf("a server with a bad list: %v", err)
	}
}

// TestFilterPages prints 20,000 prefixes and 150 rules a page at a time: each is on one, and
// a line says what is not.
func TestFilterPages(t *testing.T) {
	const prefixes, rules = 20_000, 150
	var s stack.FilterStatus
	s.Entries = slices.Grow(s.Entries, prefixes)[:prefixes]
	for n := range s.Entries {
		e := &s.Entries[n]
		e.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 32)
		e.Verdict = "deny"
	}
	s.Chains = slices.Grow(s.Chains, 1)[:1]
	c := &s.Chains[0]
	c.Name, c.Policy = "input", "accept"
	c.Rules = slices.Grow(c.Rules, rules)[:rules]
	for n := range c.Rules {
		c.Rules[n].Number = n + 1
	}
	show := func(p filterPage) (lines []string) {
		var out bytes.Buffer
		if err := new(lookFlags).printFilter(&out, s, p); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.TrimSpace(line))
		}
		return lines
	}
	first := show(filterPage{limit: filterLines})
	if len(first) != 100+1+1+100+1+1 || !strings.Contains(first[0], " 10.0.78.31/32") ||
		first[100] != "1 to 100 of 20000 prefixes, the newest first; --offset 100 has more, "+
			"--limit 0 all" ||
		first[202] != "1 to 100 of 150 rules of chain input; --offset 100 has more, "+
			"--limit 0 all" {
		t.Errorf("the first page has %d lines: %q", len(first), first)
	}
	seen := map[string]int{}
	for from := 0; from < prefixes; from += 3000 {
		page := show(filterPage{from, 3000})
		for _, line := range page {
			if strings.HasPrefix(line, "deny") || strings.HasPrefix(line, "rule") {
				seen[line]++
			}
		}
		if from == 18_000 && (page[2000] != "18001 to 20000 of 20000 prefixes, the newest first" ||
			page[2002] != "none of 150 rules of chain input: --offset is behind the last") {
			t.Errorf("%q", page[2000:])
		}
	}
	for line, n := range seen {
		if n != 1 {
			t.Errorf("%s: on %d pages", line, n)
		}
	}
	if n := len(show(filterPage{})); len(seen) != prefixes+rules || n != prefixes+rules+2 {
		t.Errorf("%d lines on all pages, %d on one with all", len(seen), n)
	}
}

// checkFilterPanel compares what the status page shows of a filter with 60 rules and two prefixes
// to whom may see the rules and to others, and then of one without any.
func checkFilterPanel(t *testing.T, st *stack.Stack) {
	t.Helper()
	var text strings.Builder
	for n := range 60 {
		fmt.Fprintf(&text, "tcp dport %d drop\n", 1000+n)
	}
	list, err := stack.ParseFilter("chain input {\n" + text.String() + "}")
	if err == nil {
		err = errors.Join(st.Filter().Load(list),
			st.Filter().Deny(netip.MustParsePrefix("198.51.100.0/24"), time.Hour))
	}
	if err != nil {
		t.Fatal(err)
	}
	panel := func(h http.Handler) *admin.FilterView {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/status", nil))
		var s admin.Status
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		return s.Filter
	}
	h := admin.Handler(admin.Config{Stack: st})
	ours, others := panel(h), panel(admin.ReadOnly(h))
	if ours == nil || others == nil || len(ours.Shown) != 52 || len(others.Shown) != 51 {
		t.Fatalf("%+v, others see %+v", ours, others)
	}
	if ours.Denied != 1 || ours.Allowed != 1 || ours.Rules != 60 ||
		ours.Shown[2].About != "tcp dport 1000 drop" || ours.Shown[2].Name != "input rule 1" {
		t.Errorf("%+v", ours)
	}
	for _, r := range others.Shown {
		if r.About != "" || r.Verdict == "allow" {
			t.Errorf("others see %+v", r)
		}
	}
	for _, e := range st.Filter().Status().Entries {
		st.Filter().Forget(e.Prefix)
	}
	if list, err = stack.ParseFilter(""); err == nil {
		err = st.Filter().Load(list)
	}
	if v := panel(admin.Handler(admin.Config{Stack: st})); err != nil || v != nil {
		t.Errorf("%v, of an empty filter %+v", err, v)
	}
}
