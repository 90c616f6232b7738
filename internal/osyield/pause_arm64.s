#include "textflag.h"

// func pause(count uint32)
TEXT ·pause(SB), NOSPLIT, $0-4
	MOVWU count+0(FP), R0
	CBZ   R0, done

again:
	ISB  $15
	SUBS $1, R0, R0
	BNE  again

done:
	RET
