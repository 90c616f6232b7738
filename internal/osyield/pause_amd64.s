#include "textflag.h"

// func pause(count uint32)
TEXT ·pause(SB), NOSPLIT, $0-4
	MOVL  count+0(FP), CX
	TESTL CX, CX
	JZ    done

again:
	PAUSE
	DECL CX
	JNZ  again

done:
	RET
