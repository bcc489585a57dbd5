package tests

import (
	"compress/gzip"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestProfile: the profile that go build lays the command out by is of the data path as it is now,
// and says nothing of the machine that it was made on.
func TestProfile(t *testing.T) {
	f, err := os.Open("../cmd/rdma-netstack/default.pgo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, of := range []string{"dv.(*RxQueue).Poll", "link/rdma.(*worker).poll",
		"link/rdma.(*sender).finish", "stack.(*TCPConn).Read", "apps/dnsd."} {
		if !strings.Contains(text, of) {
			t.Errorf("nothing of %s in it: make pgo", of)
		}
	}
	if path := regexp.MustCompile(`/(root|home|Users)/[\w./]+`).FindString(text); path != "" {
		t.Errorf("it names %s: make pgo", path)
	}
}
