package dnsd

import (
	"net"
	"testing"

	"github.com/miekg/dns"
)

func worker(t testing.TB) *udpWorker {
	s, err := New(Config{Zones: []Zone{exampleZone}})
	if err != nil {
		t.Fatal(err)
	}
	return &udpWorker{s: s, out: make([]byte, udpSize)}
}

func packed(t testing.TB, name string) []byte {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.SetEdns0(1232, false)
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAllocs: a repeated query allocates nothing.
func TestAllocs(t *testing.T) {
	w, q := worker(t), packed(t, "www.example.org.")
	if n := testing.AllocsPerRun(100, func() {
		if w.answerQuery(q, asker{}) == nil {
			t.Fatal("no answer")
		}
	}); n != 0 {
		t.Errorf("%v allocations per query", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		w.cache.answers = nil
		w.answerQuery(q, asker{})
	}); n > 30 {
		t.Errorf("%v allocations per query the first time", n)
	}
}

// TestLowerCase compares names of any length and bytes with what Go makes of them, and what is
// around them with what was there.
func TestLowerCase(t *testing.T) {
	for n := range cacheKey - headerLen + 3 {
		var b keyBuffer
		for i := range b {
			b[i] = byte(n + i*7)
		}
		want := b
		for i := headerLen - 2; i < headerLen-2+n; i++ {
			if c := want[i]; 'A' <= c && c <= 'Z' {
				want[i] += 'a' - 'A'
			}
		}
		if lowerCase(&b, headerLen-2, headerLen-2+n); b != want {
			t.Fatalf("%d bytes: %q, want %q", n, b, want)
		}
	}
}

// TestCacheIsBounded floods a worker with names that are all different.
func TestCacheIsBounded(t *testing.T) {
	w := worker(t)
	name := []byte("aaaaaaaa.wild.example.org.")
	for i := range 20000 {
		for j := range 8 {
			name[j] = 'a' + byte(i>>(2*j))&3
		}
		if w.answerQuery(packed(t, string(name)), asker{}) == nil {
			t.Fatal("no answer")
		}
		if w.cache.bytes > cacheBytes {
			t.Fatalf("%d bytes kept", w.cache.bytes)
		}
	}
	if w.cache.answers == nil {
		t.Error("nothing kept")
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(packed(f, "www.example.org."))
	f.Add(packed(f, `dot\.ted.chain1.example.org.`))
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	w := worker(f)
	f.Fuzz(func(t *testing.T, query []byte) {
		if len(query) > maxQuery {
			return
		}
		first := append([]byte(nil), w.answerQuery(query, asker{})...)
		again := w.answerQuery(query, asker{})
		if string(first) != string(again) {
			t.Fatalf("query %x\nfirst %x\nagain %x", query, first, again)
		}
		if len(first) == 0 {
			return
		}
		var r dns.Msg
		if err := r.Unpack(first); err != nil || !r.Response || len(first) > udpSize ||
			first[0] != query[0] || first[1] != query[1] {
			t.Fatalf("query %x\nanswer %x: %v", query, first, err)
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	b.Run("packed", func(b *testing.B) {
		w, q := worker(b), packed(b, "www.example.org.")
		b.ReportAllocs()
		for b.Loop() {
			w.answerQuery(q, asker{})
		}
	})
	b.Run("new", func(b *testing.B) {
		w, q := worker(b), packed(b, "www.example.org.")
		b.ReportAllocs()
		for b.Loop() {
			w.cache.answers = nil
			w.answerQuery(q, asker{})
		}
	})
	b.Run("loopback", func(b *testing.B) {
		_, addr := serve(b, Config{Zones: []Zone{exampleZone}}, nil)
		conn, err := net.Dial("udp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		q, buf := packed(b, "www.example.org."), make([]byte, 1500)
		b.ReportAllocs()
		for b.Loop() {
			conn.Write(q)
			if _, err := conn.Read(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
