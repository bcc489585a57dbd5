package simnic

import (
	"fmt"
	"sync"
)

// violations are things a driver did that silicon lets pass, or answers with
// less than an error, and that are wrong all the same.
type violations struct {
	mu       sync.Mutex
	count    uint64
	messages []string
}

// maxViolations is how many messages are kept; all are counted.
const maxViolations = 64

func (v *violations) add(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count++
	if len(v.messages) < maxViolations {
		v.messages = append(v.messages, fmt.Sprintf(format, args...))
	}
}

// Violations are the first 64 rules the driver broke that have no error
// completion of their own, as text. A correct driver leaves it empty.
func (n *NIC) Violations() []string {
	n.strict.mu.Lock()
	defer n.strict.mu.Unlock()
	return append([]string(nil), n.strict.messages...)
}
