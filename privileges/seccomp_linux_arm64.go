package privileges

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// archCalls are none: this processor has the common calls only.
func archCalls() []uint32 { return nil }
