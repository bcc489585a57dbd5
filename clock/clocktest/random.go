package clocktest

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"sync"
)

// Random returns a source of random numbers, all of which seed decides, for Config.Random. Any
// goroutine may use it; which of them gets which number is decided by their order.
func Random(seed uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return &seeded{r: rand.NewChaCha8(key)}
}

// seeded locks a generator.
type seeded struct {
	mu sync.Mutex
	r  *rand.ChaCha8 // guarded by mu
}

// Read implements io.Reader. It fills b.
func (s *seeded) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Read(b)
}
