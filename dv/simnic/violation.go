package simnic

import (
	"fmt"
	"sync"
)

// violations are mistakes of a driver that hardware ignores, or reports without an error
// completion.
type violations struct {
	mu       sync.Mutex
	count    uint64
	messages []string
}

// maxViolations is the maximum number of messages stored; all violations are counted.
const maxViolations = 64

func (v *violations) add(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count++
	if len(v.messages) < maxViolations {
		v.messages = append(v.messages, fmt.Sprintf(format, args...))
	}
}

// Violations returns the first 64 violations of rules without their own error completion, as text.
// It is empty for a correct driver.
func (n *NIC) Violations() []string {
	n.strict.mu.Lock()
	defer n.strict.mu.Unlock()
	return append([]string(nil), n.strict.messages...)
}
