"""The planner, pure, and the toy cluster on which its properties are tested."""
