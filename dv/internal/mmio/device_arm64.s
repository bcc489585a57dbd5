#include "textflag.h"

// Barrier operands: Arm ARM C6.2, DMB: 0x1 OSHLD, 0x2 OSHST; DSB: 0xE ST.

// func ToDevice()
TEXT ·ToDevice(SB), NOSPLIT, $0-0
	DMB $0x2
	RET

// func FromDevice()
TEXT ·FromDevice(SB), NOSPLIT, $0-0
	DMB $0x1
	RET

// func FlushWC()
TEXT ·FlushWC(SB), NOSPLIT, $0-0
	DSB $0xE
	RET

// func store64(p unsafe.Pointer, v uint64)
TEXT ·store64(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	MOVD R1, (R0)
	RET
