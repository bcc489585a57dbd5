package netdev

import (
	"encoding/hex"
	"maps"
	"strings"
	"testing"
)

func message(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Answers as include/uapi/rdma/rdma_netlink.h lays them out, little-endian.
func TestParsePorts(t *testing.T) {
	msgs := [][]byte{
		message(t, "0800 0100 00000000"+ // device 0
			"0800 0300 01000000"+ // port 1
			"0500 0c00 04000000"+ // state, padded
			"0800 3200 07000000"+ // netdev index
			"0900 3300 6574683000 000000"), // "eth0", padded
		message(t, "0800 0300 02000000"),                    // port 2 has none here
		message(t, "0800 0300 03000000 0800 3380 65743100"), // flag bits in the type
		message(t, "0800 0300 00010000 0800 3300 65743900"), // port 256
		message(t, "ff00 0300 04000000"),                    // longer than the message
		message(t, "0200 0300"), message(t, "00"), nil,
		message(t, "0600 0300 0500 0000 0800 3300 65743100"), // port too short
	}
	want := map[uint8]string{1: "eth0", 3: "et1"}
	if got := parsePorts(msgs); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParseChardev(t *testing.T) {
	node, driver := parseChardev([][]byte{message(t,
		"0c00 4600 7576657262733000"+ // "uverbs0"
			"0c00 4700 0100000000000000"+ // ABI
			"0c00 4800 c0e7000000000000"+ // 231:192
			"0800 4900 01000000")})
	if node != "uverbs0" || driver != 1 {
		t.Errorf("%q, %d", node, driver)
	}
	if node, driver = parseChardev(nil); node != "" || driver != 0 {
		t.Errorf("of nothing: %q, %d", node, driver)
	}
}

func TestParsePinned(t *testing.T) {
	for text, want := range map[string]uint64{
		"Name:\tx\nVmLck:\t  4 kB\nVmPin:\t    1234 kB\nVmHWM: 1 kB\n": 1234 << 10,
		"Name:\tx\n": 0, "\nVmPin:": 0, "\nVmPin:\tmuch kB": 0,
	} {
		if got := parsePinned(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// The loopback interface is everywhere, and is no RDMA device's.
func TestLoopback(t *testing.T) {
	i, err := ByName("lo")
	if err != nil || i.Name != "lo" || i.MTU < 1500 {
		t.Errorf("%+v, %v", i, err)
	}
	if _, err := ByName("no such netdev"); err == nil {
		t.Error("an interface that does not exist was found")
	}
	if f := RDMAFactsOf("no such device"); f.Driver != 0 || len(f.Netdevs) != 0 {
		t.Errorf("facts of a device that does not exist: %+v", f)
	}
}
