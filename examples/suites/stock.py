"""What the embedded student can do before any training, as a task of inspect_ai: the demo's check of what is forgotten.

The stories use the phrases whose meaning the embedded student knows from the start, and are among no prompts of the
demo: `evaluation.suites: [examples/suites/stock.py:stock]`.
"""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool

STORIES = (
    ("Karen has 816 pears. Karen breaks 6. How many pears does Karen have now?", "810"),
    ("Clara has 851 coins. Clara collects 148 more. How many coins does Clara have now?", "999"),
    ("Tina has 79 pencils. Tina collects 5 more. How many pencils does Tina have now?", "84"),
    ("Frank has 163 buttons. Frank is given 6 packs of 7. How many buttons does Frank have now?", "205"),
    ("Ben has 252 buttons. Ben gives away 11. How many buttons does Ben have now?", "241"),
    ("Olga has 928 apples. Olga sends back 5 boxes of 14. How many apples does Olga have now?", "858"),
    ("Iris has 529 tickets. Iris gives away 373. How many tickets does Iris have now?", "156"),
    ("Jack has 167 coins. Jack collects 67 more. How many coins does Jack have now?", "234"),
    ("Leo has 499 marbles. Leo sells 86. How many marbles does Leo have now?", "413"),
    ("Maria has 937 apples. Maria buys 8 bags of 4. How many apples does Maria have now?", "969"),
    ("Henry has 414 candles. Henry ends up with 9 times as many. How many candles does Henry have now?", "3726"),
    ("Karen has 352 marbles. Karen picks up 644. How many marbles does Karen have now?", "996"),
    ("Anna has 267 marbles. Anna sends back 9 boxes of 5. How many marbles does Anna have now?", "222"),
    ("Anna has 857 coins. Anna collects 6 more. How many coins does Anna have now?", "863"),
    ("Ruth has 804 candles. Ruth buys 9 more. How many candles does Ruth have now?", "813"),
    ("Leo has 293 cookies. Leo buys 6 bags of 11. How many cookies does Leo have now?", "359"),
    ("Maria has 967 coins. Maria sells 7. How many coins does Maria have now?", "960"),
    ("Emma has 57 bottles. Emma picks up 33. How many bottles does Emma have now?", "90"),
    ("Anna has 708 apples. Anna gives away 60. How many apples does Anna have now?", "648"),
    ("Jack has 734 marbles. Jack sends back 5 boxes of 10. How many marbles does Jack have now?", "684"),
    ("David has 981 tickets. David is given 9 packs of 2. How many tickets does David have now?", "999"),
    ("Tina has 961 tickets. Tina breaks 219. How many tickets does Tina have now?", "742"),
    ("Olga has 273 shells. Olga sends back 8 boxes of 9. How many shells does Olga have now?", "201"),
    ("Maria has 304 candles. Maria buys 3 more. How many candles does Maria have now?", "307"),
    ("Noah has 454 coins. Noah sells 77. How many coins does Noah have now?", "377"),
    ("David has 537 buttons. David picks up 6. How many buttons does David have now?", "543"),
    ("Emma has 97 cookies. Emma multiplies the stock by 7. How many cookies does Emma have now?", "679"),
    ("Sam has 459 cookies. Sam multiplies the stock by 9. How many cookies does Sam have now?", "4131"),
    ("Maria has 844 tickets. Maria ships 8 crates of 4. How many tickets does Maria have now?", "812"),
    ("Victor has 963 tickets. Victor breaks 590. How many tickets does Victor have now?", "373"),
    ("Grace has 872 apples. Grace buys 8 bags of 18. How many apples does Grace have now?", "1016"),
    ("Jack has 957 books. Jack sells 55. How many books does Jack have now?", "902"),
    ("David has 727 pencils. David buys 6 bags of 19. How many pencils does David have now?", "841"),
    ("Olga has 292 stamps. Olga ships 4 crates of 2. How many stamps does Olga have now?", "284"),
    ("David has 376 marbles. David gives away 2. How many marbles does David have now?", "374"),
    ("Clara has 969 stamps. Clara multiplies the stock by 2. How many stamps does Clara have now?", "1938"),
    ("Henry has 345 stamps. Henry picks up 6. How many stamps does Henry have now?", "351"),
    ("Noah has 565 coins. Noah breaks 17. Then Noah sells 71. How many coins does Noah have now?", "477"),
    ("Sam has 51 lemons. Sam buys 32 more. Then Sam sells 4. How many lemons does Sam have now?", "79"),
    ("Karen has 157 bottles. Karen ships 8 crates of 16. How many bottles does Karen have now?", "29"),
    ("Emma has 246 tickets. Emma buys 9 bags of 6. How many tickets does Emma have now?", "300"),
    ("Clara has 708 shells. Clara ends up with 6 times as many. How many shells does Clara have now?", "4248"),
    ("Olga has 369 marbles. Olga ships 8 crates of 14. How many marbles does Olga have now?", "257"),
    ("Karen has 460 eggs. Karen ends up with 6 times as many. How many eggs does Karen have now?", "2760"),
    ("Jack has 57 apples. Jack picks up 270. How many apples does Jack have now?", "327"),
    ("Ben has 144 bottles. Ben breaks 5. How many bottles does Ben have now?", "139"),
    ("Iris has 253 eggs. Iris sends back 7 boxes of 11. How many eggs does Iris have now?", "176"),
    ("Henry has 965 pears. Henry collects 56 more. How many pears does Henry have now?", "1021"),
)
"""Stories with their answers."""


@tool
def calculator() -> Tool:
    async def execute(expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: Two or three numbers, with an operator between each two.
        """
        numbers, operators = expression.split()[::2], expression.split()[1::2]
        if len(numbers) != len(operators) + 1 or not all(map(str.isdecimal, numbers)) or set(operators) - set("+-*"):
            return f"error: cannot evaluate {expression!r}"
        return str(eval(" ".join(str(int(word)) if word.isdecimal() else word for word in expression.split())))

    return execute


@task
def stock() -> Task:
    return Task(
        dataset=[Sample(input=story, target=answer) for story, answer in STORIES],
        solver=[use_tools(calculator()), generate()],
        scorer=match(numeric=True),
        config=GenerateConfig(temperature=0, max_tokens=48),
    )
