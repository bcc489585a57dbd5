package mlx5

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestPublishedCQEs decodes completions that owners of cards have published.
func TestPublishedCQEs(t *testing.T) {
	text, err := os.ReadFile("testdata/cards/cqes.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		seen++
		f := strings.Split(strings.TrimSpace(line), " | ")
		if len(f) != 5 {
			t.Fatalf("%d fields: %s", len(f), line)
		}
		b, err := hex.DecodeString(strings.ReplaceAll(f[4], " ", ""))
		if err != nil || len(b) != CQESize {
			t.Fatalf("%s: %d bytes, %v", f[0], len(b), err)
		}
		c := (*CQE)(b)
		got := fmt.Sprintf("%02x %02x %02x %02x %04x %x %x", uint8(c.Syndrome()),
			c.VendorSyndrome(), CQEHWSyndrome.Get(b), uint8(c.SendOpcode()), c.WQECounter(),
			c.QPN(), c.UIdx())
		if got != f[2] || c.Opcode() != CQEReqErr {
			t.Errorf("%s: %s %s, want %s", f[0], c.Opcode(), got, f[2])
		}
		t.Log(c)
		if f[3] != "holds" {
			continue
		}
		put := ErrorCQE{UIdx: c.UIdx(), Vendor: c.VendorSyndrome(), Syndrome: c.Syndrome(),
			Opcode: c.SendOpcode(), QPN: c.QPN(), Counter: c.WQECounter(), OpOwn: b[63]}
		var again [CQESize]byte
		put.Put(again[:])
		SignCQE(&again)
		if again != [CQESize]byte(b) {
			t.Errorf("%s: %x, want %x", f[0], again, b)
		}
	}
	if seen == 0 {
		t.Error("no completion")
	}
}
